#include "io/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace quern {

void fail_with_errno(const std::filesystem::path& path, const char* what) {
  fail(cat(path.string(), ": ", what, ": ", std::strerror(errno)));
}

Descriptor::Descriptor(const std::filesystem::path& path, int flags)
    : fd_(retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); })) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool Descriptor::write(std::span<const std::byte> bytes, int64_t offset) const {
  while (!bytes.empty()) {  // after a short write, the next call reports the reason
    const ssize_t n = retried([&] {
      return offset < 0 ? ::write(fd_, bytes.data(), bytes.size())
                        : ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    });
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
    if (offset >= 0) offset += n;
  }
  return true;
}

bool Descriptor::sync() const {
  return retried([&] { return ::fsync(fd_); }) == 0;
}

bool Descriptor::sync_behind(int64_t previous, int64_t begin, int64_t end) const {
  constexpr unsigned kWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const auto sync = [this](int64_t from, int64_t to, unsigned flags) {
    if (from == to) return true;  // a length of 0 would mean: to the end of the file
    if (retried([&] { return ::sync_file_range(fd_, from, to - from, flags); }) == 0) return true;
    // Only a call that the system lacks or forbids may be left to sync(): the kernel reports an
    // error of writing once, here or there, and its number is the device's (EIO, ENODATA, ESTALE,
    // ...).
    return errno == ESPIPE || errno == ENOSYS || errno == EPERM;
  };
  return sync(begin, end, SYNC_FILE_RANGE_WRITE) && sync(previous, begin, kWait);
}

bool Descriptor::close() {
  return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0;
}

}  // namespace quern
