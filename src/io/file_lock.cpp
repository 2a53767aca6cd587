#include "io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/error.h"
#include "io/folder.h"

namespace quern {

FileLock::FileLock(const std::filesystem::path& file, const std::string& busy)
    : FileLock(Descriptor(file, O_RDWR | O_CREAT), file, busy) {}

FileLock::FileLock(Descriptor file, const std::filesystem::path& path, const std::string& busy)
    : file_(std::move(file)) {
  if (!file_) fail_with_errno(path, "cannot be opened");
  if (retried([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) == 0) return;
  if (errno == EWOULDBLOCK) fail(busy);  // else there are no locks, as on some network file systems
}

FileLock FileLock::of_folder(const std::filesystem::path& folder, const std::string& busy) {
  create_folder(folder);
  FileLock lock(Descriptor(folder, O_RDONLY | O_DIRECTORY), folder, busy);
  struct stat locked {
  }, named{};
  const bool same = ::fstat(lock.file_.get(), &locked) == 0 &&
                    ::stat(folder.c_str(), &named) == 0 && locked.st_ino == named.st_ino &&
                    locked.st_dev == named.st_dev;
  if (!same) fail(busy);
  return lock;
}

}  // namespace quern
