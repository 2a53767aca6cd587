// Folders that are complete or not there: filled under another name, then renamed.
#pragma once

#include <filesystem>

namespace quern {

class AtomicFolder {
 public:
  // Chooses PATH.tmp, and removes one that an interrupted program left. Throws when PATH is there
  // already, saying so after `what`.
  AtomicFolder(std::filesystem::path path, const char* what);
  ~AtomicFolder();  // without commit(): removes what was written
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Where to write; the folder is not made yet.
  const std::filesystem::path& temporary() const { return temporary_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace quern
