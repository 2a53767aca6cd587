#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "io/descriptor.h"

namespace quern {

MappedFile::Identity MappedFile::identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const Descriptor descriptor(path, O_RDONLY | O_NONBLOCK);  // a FIFO would wait
  if (!descriptor) fail_with_errno(path, "cannot be opened");

  struct stat status {};
  QUERN_CHECK(::fstat(descriptor.get(), &status) == 0, path.string(), ": ", std::strerror(errno));
  QUERN_CHECK(S_ISREG(status.st_mode), path.string(), ": is not a regular file");

  MappedFile file;
  file.path_ = path;
  file.identity_ = identity_of(status);
  if (status.st_size == 0) return file;  // mmap refuses a length of zero
  const auto length = static_cast<size_t>(status.st_size);
  void* const data = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) fail_with_errno(path, "cannot be mapped");
  const auto unmap = [=](const std::byte*) { ::munmap(data, length); };
  file.data_.reset(static_cast<const std::byte*>(data), unmap);
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

}  // namespace quern
