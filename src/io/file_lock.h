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
  // The same for a folder, which is created. Also throws `busy` when it was renamed meanwhile.
  static FileLock of_folder(const std::filesystem::path& folder, const std::string& busy);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  FileLock() = default;
  void lock(const std::string& busy);

  int fd_ = -1;
};

}  // namespace quern
