#include "io/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/mapped_file.h"
#include "io/retry.h"
#include "io/small_file.h"

namespace quern {

namespace fs = std::filesystem;

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), temporary_(path_) {
  temporary_ += ".tmp";
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  fd_ = retried([&] { return ::open(temporary_.c_str(), flags, 0666); });
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
    const size_t wanted = std::min(bytes.size() - done, kMost);
    const ssize_t n = retried([&] { return ::write(fd_, bytes.data() + done, wanted); });
    if (n < 0) fail_with_errno("cannot be written");
    done += static_cast<size_t>(n);  // after a short write, the next call reports the reason
  }
  digest_.add(bytes);
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

FileDigest AtomicFile::commit() {
  if (retried([&] { return ::fsync(fd_); }) != 0) fail_with_errno("cannot be written to disk");
  const int closed = ::close(std::exchange(fd_, -1));
  const auto renamed = [&] { return ::rename(temporary_.c_str(), path_.c_str()); };
  if (closed != 0 || retried(renamed) != 0) {
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

FileDigest copy_file_atomically(const fs::path& from, const fs::path& to) {
  const MappedFile source = MappedFile::open(from);
  AtomicFile file(to);
  file.write(source.bytes());
  return file.commit();
}

void sync_directory(const fs::path& folder) {
  const fs::path& path = folder.empty() ? fs::path(".") : folder;
  const int fd = retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  QUERN_CHECK(fd >= 0, path.string(), ": folder cannot be opened: ", std::strerror(errno));
  const int synced = retried([&] { return ::fsync(fd); });
  const int reason = errno;
  ::close(fd);
  // Some network and FUSE file systems have no fsync for folders; they report EINVAL.
  QUERN_CHECK(synced == 0 || reason == EINVAL, path.string(),
              ": folder cannot be written to disk: ", std::strerror(reason));
}

namespace {

void rename_durably(const fs::path& from, const fs::path& to) {
  const int done = retried([&] { return ::rename(from.c_str(), to.c_str()); });
  QUERN_CHECK(done == 0, to.string(), ": cannot be put in place: ", std::strerror(errno));
  sync_directory(to.parent_path());
}

// Without an exchange of names: a crash leaves the old content at PATH or at PATH.old.
void replace_in_two_steps(const fs::path& from, const fs::path& to) {
  const fs::path old = fs::path(to) += kReplaced;
  std::error_code error;
  fs::remove_all(old, error);
  QUERN_CHECK(!error, old.string(), ": cannot be removed: ", error.message());
  rename_durably(to, old);
  try {
    rename_durably(from, to);
  } catch (const Error&) {
    restore_replaced(old);
    throw;
  }
  fs::remove_all(old, error);  // otherwise the next restore_replaced removes it
}

}  // namespace

void replace_directory(const fs::path& from, const fs::path& to) {
  sync_directory(from);
  if (!is_there(to)) return rename_durably(from, to);
  const auto exchange = [&] {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE);
  };
  if (retried(exchange) != 0) return replace_in_two_steps(from, to);
  sync_directory(to.parent_path());
  std::error_code ignored;  // the old content has a temporary name
  fs::remove_all(from, ignored);
}

void restore_replaced(const fs::path& old) {
  const fs::path path = fs::path(old).replace_extension();
  if (!is_there(path)) return rename_durably(old, path);
  std::error_code error;
  fs::remove_all(old, error);
  QUERN_CHECK(!error, old.string(), ": cannot be removed: ", error.message());
}

}  // namespace quern
