#include "io/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/descriptor.h"

namespace quern {

namespace {

bool means_absent(int reason) {
  return reason == ENOENT || reason == ENOTDIR;
}

}  // namespace

std::optional<std::string> read_if_there(const std::filesystem::path& path, size_t most) {
  // Without O_NONBLOCK, opening a FIFO waits for its writer.
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  if (!file && means_absent(errno)) return {};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) fail_with_errno(path, "cannot be read");
  QUERN_CHECK(S_ISREG(status.st_mode), path.string(), ": is not a regular file");
  std::string text;
  std::array<char, 65536> block;
  while (text.size() < most) {
    const size_t wanted = std::min(block.size(), most - text.size());
    const ssize_t n = retried([&] { return ::read(file.get(), block.data(), wanted); });
    if (n < 0) fail_with_errno(path, "cannot be read");
    if (n == 0) break;
    text.append(block.data(), static_cast<size_t>(n));
  }
  return text;
}

bool is_there(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (!means_absent(errno)) fail_with_errno(path, "cannot be read");
  return false;
}

}  // namespace quern
