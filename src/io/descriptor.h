// File descriptors, and system calls that a signal may interrupt.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace quern {

// Repeats a call while it returns -1 with EINTR. Not for close(): Linux has released the
// descriptor.
template <class Call>
auto retried(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// Throws "PATH: WHAT: REASON", with errno's reason.
[[noreturn]] void fail_with_errno(const std::filesystem::path& path, const char* what);

// Owns a descriptor. Its calls report an error in errno.
class Descriptor {
 public:
  // open(2) with O_CLOEXEC and, for a new file, mode 0666. False as a condition when it fails.
  Descriptor(const std::filesystem::path& path, int flags);
  explicit Descriptor(int fd = -1) : fd_(fd) {}  // takes an open one
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Writes all bytes, at the file's position or at `offset`. False on an error.
  bool write(std::span<const std::byte> bytes, int64_t offset = -1) const;
  bool sync() const;  // fsync(2)
  // Starts writing [begin, end) of the file to disk, and waits until [previous, begin) is there, so
  // that the last sync() is short. False on an error, which sync() then does not report again.
  bool sync_behind(int64_t previous, int64_t begin, int64_t end) const;
  bool close();  // false: an error, the descriptor is closed all the same

 private:
  int fd_;
};

}  // namespace quern
