// A library for LD_PRELOAD that lets one call to the file system fail, or kills the process at it.
// Calls are counted from 1 that change files below the folder QUERN_FAULT_ROOT: open (for writing,
// or a folder), write, fsync, ftruncate, close, rename, mkdir, unlink, rmdir, with their variants.
//   QUERN_FAULT=N:WHAT     at call N; WHAT is an errno's number, short (half a write), kill-before
//                          or kill-after
//   QUERN_FAULT_RANK=R     only in the process of this rank (QUERN_RANK)
//   QUERN_FAULT_LOG=FILE   appends a line "N CALL PATH" for each call; both paths for a rename
// Apart from that, QUERN_FAULT_CLOCK=1 lets the wall clock jump by days at each look at it, and
// QUERN_FAULT_NAMES=1 lets a question to name servers wait for a minute.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr int kDescriptors = 4096;

struct Settings {
  const char* root = getenv("QUERN_FAULT_ROOT");
  const char* log = getenv("QUERN_FAULT_LOG");
  bool clock_jumps = getenv("QUERN_FAULT_CLOCK") != nullptr;
  bool names_are_silent = getenv("QUERN_FAULT_NAMES") != nullptr;
  long at = 0;         // the call that fails; 0: none
  char what[32] = {};  // of it

  Settings() {
    const char* fault = getenv("QUERN_FAULT");
    if (fault != nullptr) sscanf(fault, "%ld:%31s", &at, what);
    const char *of = getenv("QUERN_FAULT_RANK"), *rank = getenv("QUERN_RANK");
    if (of != nullptr && (rank == nullptr || strcmp(of, rank) != 0)) at = 0;
  }
};

const Settings& settings() {
  static const Settings all;
  return all;
}

std::atomic<long> calls;
std::atomic<bool> ours[kDescriptors];  // descriptors of files below the root, open for writing

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

struct Path {
  char text[PATH_MAX] = {};  // empty: unknown
};

Path path_of(int descriptor) {
  Path path;
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  if (readlink(link, path.text, sizeof(path.text) - 1) < 0) path.text[0] = '\0';
  return path;
}

bool below_root(int folder, const char* path) {
  const char* root = settings().root;
  if (root == nullptr || path == nullptr) return false;
  Path whole;
  if (path[0] != '/') {
    if (folder != AT_FDCWD) {
      whole = path_of(folder);
      if (whole.text[0] == '\0') return false;
    } else if (getcwd(whole.text, sizeof(whole.text)) == nullptr) {
      return false;
    }
    strncat(whole.text, "/", sizeof(whole.text) - strlen(whole.text) - 1);
    strncat(whole.text, path, sizeof(whole.text) - strlen(whole.text) - 1);
    path = whole.text;
  }
  const size_t length = strlen(root);
  return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

bool is_ours(int descriptor) {
  return descriptor >= 0 && descriptor < kDescriptors && ours[descriptor];
}

// The fate of one call.
struct Fault {
  bool fails = false, is_short = false, kills_after = false;

  Fault(const char* call, int descriptor) : Fault(call, path_of(descriptor).text) {}
  Fault(const char* call, const char* path, const char* to = nullptr) {
    const long number = ++calls;
    const Settings& s = settings();
    if (s.log != nullptr) {
      char line[2 * PATH_MAX + 64];
      const int size = snprintf(line, sizeof(line), "%ld %s %s%s%s\n", number, call, path,
                                to != nullptr ? " " : "", to != nullptr ? to : "");
      const auto file = static_cast<int>(
          syscall(SYS_openat, AT_FDCWD, s.log, O_WRONLY | O_CREAT | O_APPEND, 0644));
      if (syscall(SYS_write, file, line, size) < 0) abort();
      syscall(SYS_close, file);
    }
    if (number != s.at) return;
    if (strcmp(s.what, "kill-before") == 0) raise(SIGKILL);
    kills_after = strcmp(s.what, "kill-after") == 0;
    is_short = strcmp(s.what, "short") == 0;
    fails = !kills_after && !is_short;
    if (fails) errno = atoi(s.what);
  }
  ~Fault() {
    if (kills_after) raise(SIGKILL);
  }
};

int open_at(int folder, const char* path, int flags, mode_t mode) {
  const auto call = [&](bool writes) {
    const auto file = static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
    if (file >= 0 && file < kDescriptors) ours[file] = writes;
    return file;
  };
  const bool writes = (flags & (O_WRONLY | O_RDWR | O_DIRECTORY)) != 0 && below_root(folder, path);
  if (!writes) return call(false);
  const Fault fault("open", path);
  return fault.fails ? -1 : call(true);
}

mode_t mode_of(int flags, va_list rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

template <class Call>
int path_call(const char* name, int folder, const char* path, Call call) {
  if (!below_root(folder, path)) return call();
  const Fault fault(name, path);
  return fault.fails ? -1 : call();
}

int rename_at(int a, const char* from, int b, const char* to, unsigned flags) {
  const auto call = [&] { return static_cast<int>(syscall(SYS_renameat2, a, from, b, to, flags)); };
  if (!below_root(b, to)) return call();
  const Fault fault("rename", from, to);
  return fault.fails ? -1 : call();
}

// Calls write(data, size), possibly with half the size.
template <class Write>
ssize_t write_call(int file, const void* data, size_t size, Write write) {
  if (!is_ours(file)) return write(data, size);
  const Fault fault("write", file);
  return fault.fails ? -1 : write(data, fault.is_short ? (size + 1) / 2 : size);
}

template <class Call>
int file_call(const char* name, int descriptor, Call call) {
  if (!is_ours(descriptor)) return call();
  const Fault fault(name, descriptor);
  return fault.fails ? -1 : call();
}

FILE* open_stream(const char* symbol, const char* path, const char* mode) {
  const auto call = real<FILE* (*)(const char*, const char*)>(symbol);
  if (strpbrk(mode, "wa+") == nullptr || !below_root(AT_FDCWD, path)) return call(path, mode);
  const Fault fault("open", path);
  if (fault.fails) return nullptr;
  FILE* stream = call(path, mode);
  if (stream != nullptr && fileno(stream) < kDescriptors) ours[fileno(stream)] = true;
  return stream;
}

}  // namespace

extern "C" {

#define QUERN_OPEN(name)                         \
  int name(const char* path, int flags, ...) {   \
    va_list rest;                                \
    va_start(rest, flags);                       \
    const mode_t mode = mode_of(flags, rest);    \
    va_end(rest);                                \
    return open_at(AT_FDCWD, path, flags, mode); \
  }
#define QUERN_OPENAT(name)                                 \
  int name(int folder, const char* path, int flags, ...) { \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    const mode_t mode = mode_of(flags, rest);              \
    va_end(rest);                                          \
    return open_at(folder, path, flags, mode);             \
  }
QUERN_OPEN(open)
QUERN_OPEN(open64)
QUERN_OPENAT(openat)
QUERN_OPENAT(openat64)

FILE* fopen(const char* path, const char* mode) {
  return open_stream("fopen", path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  return open_stream("fopen64", path, mode);
}

ssize_t write(int file, const void* data, size_t size) {
  return write_call(file, data, size, [&](const void* part, size_t length) {
    return syscall(SYS_write, file, part, length);
  });
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  return write_call(file, data, size, [&](const void* part, size_t length) {
    return syscall(SYS_pwrite64, file, part, length, offset);
  });
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  return pwrite(file, data, size, offset);
}

ssize_t writev(int file, const iovec* parts, int count) {
  if (!is_ours(file)) return syscall(SYS_writev, file, parts, count);
  const Fault fault("write", file);
  if (fault.fails) return -1;
  return fault.is_short && count > 0
             ? syscall(SYS_write, file, parts[0].iov_base, (parts[0].iov_len + 1) / 2)
             : syscall(SYS_writev, file, parts, count);
}

int close(int file) {
  const bool counts = is_ours(file);
  if (!counts) return static_cast<int>(syscall(SYS_close, file));
  ours[file] = false;
  const Fault fault("close", file);
  const int saved = errno;  // a close that fails has closed the file on Linux
  const auto result = static_cast<int>(syscall(SYS_close, file));
  errno = saved;
  return fault.fails ? -1 : result;
}

int fclose(FILE* stream) {
  static const auto call = real<int (*)(FILE*)>("fclose");
  const int file = stream != nullptr ? fileno(stream) : -1;
  if (!is_ours(file)) return call(stream);
  ours[file] = false;
  const Fault fault("close", file);
  const int saved = errno;
  const int result = call(stream);
  errno = saved;
  return fault.fails ? EOF : result;
}

int fsync(int file) {
  return file_call("fsync", file, [&] { return static_cast<int>(syscall(SYS_fsync, file)); });
}
int fdatasync(int file) {
  return file_call("fsync", file, [&] { return static_cast<int>(syscall(SYS_fdatasync, file)); });
}
int ftruncate(int file, off_t size) {
  return file_call("ftruncate", file,
                   [&] { return static_cast<int>(syscall(SYS_ftruncate, file, size)); });
}
int rename(const char* from, const char* to) {
  return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
  return rename_at(a, from, b, to, flags);
}
int mkdir(const char* path, mode_t mode) {
  return path_call("mkdir", AT_FDCWD, path,
                   [&] { return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode)); });
}
int unlink(const char* path) {
  return path_call("unlink", AT_FDCWD, path,
                   [&] { return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0)); });
}
int unlinkat(int folder, const char* path, int flags) {
  return path_call("unlink", folder, path,
                   [&] { return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags)); });
}
int remove(const char* path) {
  return path_call("unlink", AT_FDCWD, path, [&] {
    const auto result = static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
    if (result == 0 || errno != EISDIR) return result;
    return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
  });
}
int rmdir(const char* path) {
  return path_call("unlink", AT_FDCWD, path, [&] {
    return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
  });
}

int clock_gettime(clockid_t clock, timespec* now) {
  static std::atomic<long> looks;
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (clock == CLOCK_REALTIME && settings().clock_jumps) now->tv_sec += (++looks % 7 - 3) * 86400;
  return result;
}

int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  if (settings().names_are_silent && (hints->ai_flags & AI_NUMERICHOST) == 0) sleep(60);
  return real<decltype(&getaddrinfo)>("getaddrinfo")(host, port, hints, found);
}
}
