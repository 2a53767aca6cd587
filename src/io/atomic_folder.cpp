#include "io/atomic_folder.h"

#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

fs::path without_slash(fs::path path) {  // "folder/"
  return path.has_filename() ? std::move(path) : path.parent_path();
}

fs::path temporary_of(const fs::path& path, const char* what) {
  QUERN_CHECK(!fs::exists(path), what, ": ", path.string(),
              " exists already, expected a new folder");
  return fs::path(path) += ".tmp";
}

}  // namespace

AtomicFolder::AtomicFolder(fs::path path, const char* what)
    : path_(without_slash(std::move(path))),
      temporary_(temporary_of(path_, what)),
      lock_(FileLock::of_folder(
          temporary_, cat(what, ": ", temporary_.string(), ": another process is filling it"))) {
  for (const auto& entry : fs::directory_iterator(temporary_)) remove_tree(entry.path());
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;  // an exception is on its way, or there is nothing to remove
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  replace_directory(temporary_, path_);
}

}  // namespace quern
