// An advisory lock (flock) between processes.
#pragma once

#include <filesystem>
#include <string>

#include "io/descriptor.h"

namespace quern {

class FileLock {
 public:
  // Locks `file` until destruction and creates it if absent. Throws `busy` when the lock is taken,
  // and naming the file when it cannot be opened. File systems without locks count as locked.
  FileLock(const std::filesystem::path& file, const std::string& busy);
  // The same for a folder, which is created. Also throws `busy` when it was renamed meanwhile.
  static FileLock of_folder(const std::filesystem::path& folder, const std::string& busy);

 private:
  FileLock(Descriptor file, const std::filesystem::path& path, const std::string& busy);

  Descriptor file_;
};

}  // namespace quern
