// Atomic folder writes: the folder is filled under a temporary name, then renamed.
#pragma once

#include <filesystem>

namespace quern {

class AtomicFolder {
 public:
  // Uses PATH.tmp and removes one that an interrupted program left. Throws when PATH exists; the
  // message begins with `what`.
  AtomicFolder(std::filesystem::path path, const char* what);
  ~AtomicFolder();  // without commit(): removes what was written
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // The folder to fill; the caller creates it.
  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace quern
