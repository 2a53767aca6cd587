#include "io/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/retry.h"

namespace quern {

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  fd_ = retried([&] { return ::open(path_.c_str(), flags, 0666); });
  QUERN_CHECK(fd_ >= 0, path_.string(), ": cannot be opened for writing: ", std::strerror(errno));
}

AppendFile::~AppendFile() {
  ::close(fd_);
}

void AppendFile::write(std::string_view text) {
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t n = retried([&] { return ::write(fd_, rest.data(), rest.size()); });
    if (n < 0) {
      const int reason = errno;
      // A part of a line would spoil the next one.
      [[maybe_unused]] const int cut = before < 0 ? 0 : ::ftruncate(fd_, before);
      fail(cat(path_.string(), ": cannot be written: ", std::strerror(reason)));
    }
    rest.remove_prefix(static_cast<size_t>(n));
  }
}

void AppendFile::sync() {
  QUERN_CHECK(retried([&] { return ::fsync(fd_); }) == 0 || errno == EINVAL, path_.string(),
              ": cannot be written to disk: ", std::strerror(errno));
}

}  // namespace quern
