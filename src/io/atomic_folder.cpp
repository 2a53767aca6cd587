#include "io/atomic_folder.h"

#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"

namespace quern {

namespace fs = std::filesystem;

AtomicFolder::AtomicFolder(fs::path path, const char* what) : path_(std::move(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "folder/"
  QUERN_CHECK(!fs::exists(path_), what, ": ", path_.string(),
              " exists already, expected a new folder");
  temporary_ = path_;
  temporary_ += ".tmp";
  std::error_code error;
  fs::remove_all(temporary_, error);
  QUERN_CHECK(!error, temporary_.string(), ": cannot be removed: ", error.message());
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), error);
  QUERN_CHECK(!error, path_.string(), ": cannot be created: ", error.message());
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;  // an exception is on its way, or there is nothing to remove
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  replace_directory(temporary_, path_);
}

}  // namespace quern
