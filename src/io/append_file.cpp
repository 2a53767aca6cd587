#include "io/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace quern {

AppendFile::AppendFile(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, O_WRONLY | O_CREAT | O_APPEND) {
  if (!file_) fail_with_errno(path_, "cannot be opened for writing");
}

void AppendFile::write(std::string_view text) {
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);
  if (file_.write(std::as_bytes(std::span(text)))) return;
  const int reason = errno;
  // A part of a line would spoil the next one.
  [[maybe_unused]] const int cut = before < 0 ? 0 : ::ftruncate(file_.get(), before);
  errno = reason;
  fail_with_errno(path_, "cannot be written");
}

void AppendFile::sync() {
  if (!file_.sync() && errno != EINVAL) fail_with_errno(path_, "cannot be written to disk");
}

}  // namespace quern
