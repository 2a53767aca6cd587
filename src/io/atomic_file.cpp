#include "io/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace quern {

namespace fs = std::filesystem;

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), temporary_(path_) {
  temporary_ += ".tmp";
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_with_errno("cannot be created");
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail_with_errno(const char* what) const {
  fail(cat(path_.string(), ": ", what, ": ", std::strerror(errno)));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // Linux writes at most 2 GiB at a time
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd_, bytes.data() + done, std::min(bytes.size() - done, kMost));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno("cannot be written");
    done += static_cast<size_t>(n);  // after a short write, the next call reports the reason
  }
  digest_.add(bytes);
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

FileDigest AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno("cannot be written to disk");
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary_.c_str());
    errno = reason;
    fail_with_errno("cannot be put in place");
  }
  sync_directory(path_.parent_path());
  return digest_.digest();
}

FileDigest write_file_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  return file.commit();
}

void sync_directory(const fs::path& folder) {
  const fs::path& path = folder.empty() ? fs::path(".") : folder;
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  QUERN_CHECK(fd >= 0, path.string(), ": folder cannot be opened: ", std::strerror(errno));
  const int synced = ::fsync(fd);
  const int reason = errno;
  ::close(fd);
  // Some network and FUSE file systems have no fsync for folders; they report EINVAL.
  QUERN_CHECK(synced == 0 || reason == EINVAL, path.string(),
              ": folder cannot be written to disk: ", std::strerror(reason));
}

void replace_directory(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(to)) {
    fs::rename(from, to, error);
  } else if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    fs::remove_all(to, error);  // the file system cannot exchange names
    if (!error) fs::rename(from, to, error);
  }
  QUERN_CHECK(!error, to.string(), ": cannot be put in place: ", error.message());
  sync_directory(to.parent_path());
  fs::remove_all(from, error);  // after an exchange: the old content
}

}  // namespace quern
