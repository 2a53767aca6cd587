// Atomic folder writes: the folder is filled under a temporary name, then renamed.
#pragma once

#include <filesystem>

#include "io/file_lock.h"

namespace quern {

class AtomicFolder {
 public:
  // Uses PATH.tmp and removes what an interrupted program left there. Throws when PATH exists, the
  // message begins with `what`, and when another process is filling PATH.tmp.
  AtomicFolder(std::filesystem::path path, const char* what);
  ~AtomicFolder();  // without commit(): removes what was written
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // The folder to fill, empty at first.
  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  FileLock lock_;  // on temporary_
};

}  // namespace quern
