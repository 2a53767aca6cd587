#undef _FORTIFY_SOURCE  // its header defines open itself
#include "support/faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <mutex>
#include <utility>

namespace quern::testing_support {

namespace {

FaultyCalls::Hook hook;
std::atomic<bool> active{false};
std::mutex one_at_a_time;               // calls of the hook
thread_local bool inside_hook = false;  // whose own calls go on

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

std::string path_of(const char* path) {
  return path;
}

std::string path_of(int fd) {
  char name[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t n = readlink(link.c_str(), name, sizeof name);
  return {name, static_cast<size_t>(n < 0 ? 0 : n)};
}

// Sets errno and returns true when the call on a path or descriptor must fail. Takes no memory
// without a hook: a test may let that fail, too.
template <class Where>
bool fails(const char* call, Where where) {
  if (!active || inside_hook) return false;
  const std::lock_guard lock(one_at_a_time);
  const int before = errno;
  inside_hook = true;
  const int reason = hook(call, path_of(where));
  inside_hook = false;
  errno = reason != 0 ? reason : before;
  return reason != 0;
}

}  // namespace

FaultyCalls::FaultyCalls(Hook given) {
  hook = std::move(given);
  active = true;
}

FaultyCalls::~FaultyCalls() {
  active = false;
  hook = nullptr;
}

}  // namespace quern::testing_support

using quern::testing_support::fails;
using quern::testing_support::next;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  static auto* real = next<int(const char*, int, ...)>("open");
  return fails("open", path) ? -1 : real(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
  va_end(arguments);
  static auto* real = next<int(int, const char*, int, ...)>("openat");
  return fails("openat", path) ? -1 : real(folder, path, flags, mode);
}

dirent* readdir(DIR* folder) {
  static auto* real = next<dirent*(DIR*)>("readdir");
  return fails("readdir", dirfd(folder)) ? nullptr : real(folder);
}

int fsync(int fd) {
  static auto* real = next<int(int)>("fsync");
  return fails("fsync", fd) ? -1 : real(fd);
}

int sync_file_range(int fd, off_t begin, off_t size, unsigned flags) {
  static auto* real = next<int(int, off_t, off_t, unsigned)>("sync_file_range");
  return fails("sync_file_range", fd) ? -1 : real(fd, begin, size, flags);
}

int close(int fd) {
  static auto* real = next<int(int)>("close");
  const bool refused = fails("close", fd);
  const int reason = errno;
  const int result = real(fd);  // Linux releases the descriptor in any case
  if (refused) errno = reason;
  return refused ? -1 : result;
}

ssize_t read(int fd, void* data, size_t size) {
  static auto* real = next<ssize_t(int, void*, size_t)>("read");
  return fails("read", fd) ? -1 : real(fd, data, size);
}

ssize_t write(int fd, const void* data, size_t size) {
  static auto* real = next<ssize_t(int, const void*, size_t)>("write");
  return fails("write", fd) ? -1 : real(fd, data, size);
}

off_t lseek(int fd, off_t offset, int whence) noexcept {
  static auto* real = next<off_t(int, off_t, int)>("lseek");
  return fails("lseek", fd) ? -1 : real(fd, offset, whence);
}

int fstat(int fd, struct stat* status) noexcept {
  static auto* real = next<int(int, struct stat*)>("fstat");
  return fails("fstat", fd) ? -1 : real(fd, status);
}

int flock(int fd, int operation) noexcept {
  static auto* real = next<int(int, int)>("flock");
  return fails("flock", fd) ? -1 : real(fd, operation);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* real = next<int(const char*, mode_t)>("mkdir");
  return fails("mkdir", path) ? -1 : real(path, mode);
}

int remove(const char* path) noexcept {
  static auto* real = next<int(const char*)>("remove");
  return fails("remove", path) ? -1 : real(path);
}

int rename(const char* from, const char* to) noexcept {
  static auto* real = next<int(const char*, const char*)>("rename");
  return fails("rename", from) ? -1 : real(from, to);
}

int renameat2(int at, const char* from, int at2, const char* to, unsigned flags) noexcept {
  static auto* real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return fails("renameat2", from) ? -1 : real(at, from, at2, to, flags);
}

int unlinkat(int at, const char* path, int flags) noexcept {
  static auto* real = next<int(int, const char*, int)>("unlinkat");
  return fails("unlinkat", path) ? -1 : real(at, path, flags);
}

}  // extern "C"
