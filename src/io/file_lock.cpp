#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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
  lock(busy);
}

FileLock FileLock::of_folder(const std::filesystem::path& folder, const std::string& busy) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  QUERN_CHECK(!error, folder.string(), ": cannot be created: ", error.message());
  FileLock result;
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  result.fd_ = retried([&] { return ::open(folder.c_str(), flags); });
  QUERN_CHECK(result.fd_ >= 0, folder.string(), ": cannot be opened: ", std::strerror(errno));
  result.lock(busy);
  struct stat locked {
  }, named{};
  const bool same = ::fstat(result.fd_, &locked) == 0 && ::stat(folder.c_str(), &named) == 0 &&
                    locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
  if (!same) fail(busy);
  return result;
}

void FileLock::lock(const std::string& busy) {
  if (retried([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == 0) return;
  if (errno != EWOULDBLOCK) return;  // no locks here, as on some network file systems
  ::close(std::exchange(fd_, -1));
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
