#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/retry.h"

namespace quern {

namespace {

// Closes the descriptor on every exit; the mapping outlives it.
struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

}  // namespace

MappedFile::Identity MappedFile::identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const int fd = retried([&] {
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait
  });
  QUERN_CHECK(fd >= 0, path.string(), ": cannot be opened: ", std::strerror(errno));
  const Descriptor closer{fd};

  struct stat status {};
  QUERN_CHECK(::fstat(fd, &status) == 0, path.string(), ": ", std::strerror(errno));
  QUERN_CHECK(S_ISREG(status.st_mode), path.string(), ": is not a regular file");

  MappedFile file;
  file.path_ = path;
  file.identity_ = identity_of(status);
  if (status.st_size == 0) return file;  // mmap refuses a length of zero
  const auto length = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, 0);
  QUERN_CHECK(data != MAP_FAILED, path.string(), ": cannot be mapped: ", std::strerror(errno));
  file.bytes_ = {static_cast<const std::byte*>(data), length};
  return file;
}

void MappedFile::check_unchanged() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return;
  const Identity now = identity_of(status);
  if (now.device != identity_.device || now.inode != identity_.inode) return;
  QUERN_CHECK(now.bytes == identity_.bytes, path_.string(), ": has ", now.bytes,
              " bytes now, expected the ", identity_.bytes, " that it had when it was opened");
  QUERN_CHECK(now.changed == identity_.changed, path_.string(),
              ": was written to while it is in use");
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      identity_(other.identity_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(identity_, other.identity_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace quern
