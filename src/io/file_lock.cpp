#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/retry.h"

namespace quern {

FileLock::FileLock(const std::filesystem::path& file, const std::string& busy) {
  fd_ = retried([&] { return ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
  QUERN_CHECK(fd_ >= 0, file.string(), ": cannot be opened: ", std::strerror(errno));
  if (retried([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == 0) return;
  if (errno != EWOULDBLOCK) return;  // no locks here, as on some network file systems
  ::close(fd_);
  fail(busy);
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace quern
