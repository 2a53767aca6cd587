#include "io/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "io/retry.h"

namespace quern {

namespace {

bool means_absent(int reason) {
  return reason == ENOENT || reason == ENOTDIR;
}

[[noreturn]] void refuse(const std::filesystem::path& path, int reason) {
  fail(cat(path.string(), ": cannot be read: ", std::strerror(reason)));
}

struct OpenFile {
  int fd;
  ~OpenFile() { ::close(fd); }
};

}  // namespace

std::optional<std::string> read_if_there(const std::filesystem::path& path, size_t most) {
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
  const int fd = retried([&] { return ::open(path.c_str(), flags); });
  if (fd < 0 && means_absent(errno)) return {};
  if (fd < 0) refuse(path, errno);
  const OpenFile closer{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0) refuse(path, errno);
  QUERN_CHECK(S_ISREG(status.st_mode), path.string(), ": is not a regular file");
  std::string text;
  std::array<char, 65536> block;
  while (text.size() < most) {
    const size_t wanted = std::min(block.size(), most - text.size());
    const ssize_t n = retried([&] { return ::read(fd, block.data(), wanted); });
    if (n < 0) refuse(path, errno);
    if (n == 0) break;
    text.append(block.data(), static_cast<size_t>(n));
  }
  return text;
}

bool is_there(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (!means_absent(errno)) refuse(path, errno);
  return false;
}

}  // namespace quern
