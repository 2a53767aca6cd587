// An advisory lock (flock) between processes.
#pragma once

#include <filesystem>
#include <string>

namespace quern {

class FileLock {
 public:
  // Locks `file` until destruction and creates it if absent. Throws `busy` when the lock is taken,
  // and naming the file when it cannot be opened. File systems without locks count as locked.
  FileLock(const std::filesystem::path& file, const std::string& busy);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  int fd_ = -1;
};

}  // namespace quern
