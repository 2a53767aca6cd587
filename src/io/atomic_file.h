// Atomic writes of files and folders: write under a temporary name, fsync, rename to PATH, fsync
// the folder of PATH.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "io/checksum.h"
#include "io/descriptor.h"
#include "io/file_lock.h"

namespace quern {

class AtomicFile {
 public:
  // Opens PATH.tmp; if PATH is a link, beside its target. Throws naming the path when the folder is
  // missing or not writable, and when PATH is a pipe, a device or a folder.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // without commit(): removes what was written
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throws naming the path and the reason (no space left on device, file too large, ...).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Renames the file durably to its final name. Returns its size and checksum.
  FileDigest commit();

 private:
  std::filesystem::path path_, temporary_;
  Descriptor file_;
  DigestStream digest_;
  int64_t written_ = 0, started_ = 0, before_ = 0;  // bytes; the last two: see sync_behind()
};

FileDigest write_file_atomically(const std::filesystem::path& path, std::string_view text);

// Copies durably: fs::copy_file does not fsync. Replaces an existing file.
FileDigest copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes renames in the folder durable.
void sync_directory(const std::filesystem::path& folder);

// Renames folder `from` to `to` durably. Its files must be on disk. Throws if `to` exists and is
// not empty: another process may have created it meanwhile.
void place_new_folder(const std::filesystem::path& from, const std::filesystem::path& to);

// Renames folder `from` to `to` durably and replaces an existing folder. Its files must be on disk.
// The replacement is atomic if the file system can exchange names. Otherwise the old folder is
// TO.old for a moment, and restore_replaced(TO.old) puts it back after a crash.
void replace_directory(const std::filesystem::path& from, const std::filesystem::path& to);

inline constexpr std::string_view kReplaced = ".old";
// Renames PATH.old to PATH if PATH is absent, removes it otherwise.
void restore_replaced(const std::filesystem::path& old);

// The suffix of an AtomicFolder's temporary name. The folder is emptied, so a user's own folder
// must not have it.
inline constexpr std::string_view kUnfinished = ".quern.tmp";

// The folder is filled under a temporary name, then renamed.
class AtomicFolder {
 public:
  // Uses PATH.quern.tmp and removes what an interrupted program left there. Throws when PATH
  // exists, the message begins with `what`, and when another process is filling PATH.quern.tmp.
  AtomicFolder(const std::filesystem::path& path, const char* what);
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
