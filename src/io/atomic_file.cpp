#include "io/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "io/folder.h"
#include "io/mapped_file.h"
#include "io/small_file.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Bytes written and synced together: enough to keep a disk busy, and written within a second.
constexpr size_t kPiece = size_t{32} << 20;

// The file to replace: `path`, or the file to which it links. Throws on pipes, devices and folders.
fs::path file_behind(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as Linux
  fs::path file = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(file, error); ++i) {
    file = file.parent_path() / fs::read_symlink(file, error);
  }
  const fs::file_status there = fs::symlink_status(file, error);
  QUERN_CHECK(!fs::exists(there) || fs::is_regular_file(there), path.string(),
              ": is not a regular file, and cannot be replaced");
  return file;
}

}  // namespace

AtomicFile::AtomicFile(fs::path path)
    : path_(file_behind(path)),
      temporary_(fs::path(path_) += ".tmp"),
      file_(temporary_, O_WRONLY | O_CREAT | O_TRUNC) {
  if (!file_) fail_with_errno(path_, "cannot be created");
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  file_.close();
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPiece, bytes.size()))) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    if (!file_.write(piece)) fail_with_errno(path_, "cannot be written");
    digest_.add(piece);
    written_ += std::ssize(piece);
    if (written_ - started_ < static_cast<int64_t>(kPiece)) continue;
    if (!file_.sync_behind(before_, started_, written_)) {
      fail_with_errno(path_, "cannot be written to disk");
    }
    before_ = std::exchange(started_, written_);
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

FileDigest AtomicFile::commit() {
  if (!file_.sync()) fail_with_errno(path_, "cannot be written to disk");
  const auto renamed = [&] { return ::rename(temporary_.c_str(), path_.c_str()); };
  if (!file_.close() || retried(renamed) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    errno = reason;
    fail_with_errno(path_, "cannot be put in place");
  }
  sync_directory(path_.parent_path());
  return digest_.digest();
}

FileDigest write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  return file.commit();
}

FileDigest copy_file_atomically(const fs::path& from, const fs::path& to) {
  const MappedFile source = MappedFile::open(from);
  AtomicFile file(to);
  file.write(source.bytes());
  return file.commit();
}

void sync_directory(const fs::path& folder) {
  const fs::path& path = folder.empty() ? fs::path(".") : folder;
  const Descriptor file(path, O_RDONLY | O_DIRECTORY);
  if (!file) fail_with_errno(path, "folder cannot be opened");
  // Some network and FUSE file systems have no fsync for folders; they report EINVAL.
  if (!file.sync() && errno != EINVAL) fail_with_errno(path, "folder cannot be written to disk");
}

namespace {

void rename_durably(const fs::path& from, const fs::path& to) {
  const auto renamed = [&] { return ::rename(from.c_str(), to.c_str()); };
  if (retried(renamed) != 0) fail_with_errno(to, "cannot be put in place");
  sync_directory(to.parent_path());
}

// Without an exchange of names: a crash leaves the old content at PATH or at PATH.old.
void replace_in_two_steps(const fs::path& from, const fs::path& to) {
  const fs::path old = fs::path(to) += kReplaced;
  remove_tree(old);
  rename_durably(to, old);
  try {
    rename_durably(from, to);
  } catch (const Error&) {
    restore_replaced(old);
    throw;
  }
  std::error_code ignored;  // the next restore_replaced removes it
  remove_tree(old, ignored);
}

}  // namespace

void place_new_folder(const fs::path& from, const fs::path& to) {
  sync_directory(from);
  rename_durably(from, to);
}

void replace_directory(const fs::path& from, const fs::path& to) {
  if (!is_there(to)) return place_new_folder(from, to);
  sync_directory(from);
  const auto exchange = [&] {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE);
  };
  if (retried(exchange) != 0) return replace_in_two_steps(from, to);
  sync_directory(to.parent_path());
  std::error_code ignored;  // the old content has a temporary name
  remove_tree(from, ignored);
}

void restore_replaced(const fs::path& old) {
  const fs::path path = fs::path(old).replace_extension();
  if (!is_there(path)) return rename_durably(old, path);
  remove_tree(old);
}

namespace {

fs::path temporary_of(const fs::path& path, const char* what) {
  QUERN_CHECK(!fs::exists(path), what, ": ", path.string(),
              " exists already, expected a new folder");
  return fs::path(path) += kUnfinished;
}

}  // namespace

AtomicFolder::AtomicFolder(const fs::path& path, const char* what)
    : path_(without_slash(path)),
      temporary_(temporary_of(path_, what)),
      lock_(FileLock::of_folder(
          temporary_, cat(what, ": ", temporary_.string(), ": another process is filling it"))) {
  for (const fs::path& entry : entries_of(temporary_)) remove_tree(entry);
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;  // an exception is on its way, or there is nothing to remove
  remove_tree(temporary_, ignored);
}

void AtomicFolder::commit() {
  place_new_folder(temporary_, path_);
}

}  // namespace quern
