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
  if (status.st_size == 0) return file;  // mmap refuses a length of zero
  const auto length = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, 0);
  QUERN_CHECK(data != MAP_FAILED, path.string(), ": cannot be mapped: ", std::strerror(errno));
  file.bytes_ = {static_cast<const std::byte*>(data), length};
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace quern
