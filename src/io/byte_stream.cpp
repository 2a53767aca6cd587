#include "io/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "io/raw_file.h"

namespace quern {

namespace fs = std::filesystem;

RawFile::RawFile(fs::path path, RawObserver observer)
    : path_(std::move(path)),
      observer_(std::move(observer)),
      fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  QUERN_CHECK(fd_ >= 0, path_.string(), ": cannot be opened: ", std::strerror(errno));
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);  // a hint: its failure means nothing
}

RawFile::~RawFile() {
  ::close(fd_);
}

size_t RawFile::read(char* out, size_t size) {
  ssize_t n = -1;
  do {
    n = ::read(fd_, out, size);
  } while (n < 0 && errno == EINTR);
  if (n < 0) refuse(cat("cannot be read: ", std::strerror(errno)), offset_);
  offset_ += n;
  if (observer_) observer_(std::as_bytes(std::span(out, static_cast<size_t>(n))));
  return static_cast<size_t>(n);
}

int64_t RawFile::skip(int64_t count) {
  struct stat status {};
  const bool seekable = !observer_ && ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
  if (!seekable) return ByteStream::skip(count);
  const int64_t there = std::clamp<int64_t>(status.st_size - offset_, 0, count);
  if (::lseek(fd_, offset_ + there, SEEK_SET) < 0) refuse("cannot be read", offset_);
  offset_ += there;
  return there;
}

void RawFile::refuse(const std::string& what, int64_t offset) const {
  fail(cat(path_.string(), ": ", what, " at byte ", offset));
}

bool RawBuffer::more() {
  if (begin_ == end_) {
    begin_ = 0;
    end_ = file_->read(buffer_.data(), buffer_.size());
  }
  return begin_ < end_;
}

Compression compression_of(const fs::path& path) {
  std::array<char, 4> bytes{};
  std::ifstream file(path, std::ios::binary);
  QUERN_CHECK(file, path.string(), ": cannot be opened: ", std::strerror(errno));
  file.read(bytes.data(), bytes.size());
  const std::string_view head(bytes.data(), static_cast<size_t>(file.gcount()));
  const bool skippable_frame = head.size() == 4 && (head[0] & 0xF0) == 0x50 &&
                               head.substr(1) == std::string_view("\x2A\x4D\x18", 3);
  Compression compression = Compression::none;
  if (head.starts_with("\x1F\x8B")) compression = Compression::gzip;
  if (head == "\x28\xB5\x2F\xFD" || skippable_frame) compression = Compression::zstd;

  const std::string extension = path.extension().string();
  QUERN_CHECK(extension != ".gz" || compression == Compression::gzip, path.string(),
              ": is named .gz, but does not begin as a gzip file does");
  QUERN_CHECK((extension != ".zst" && extension != ".zstd") || compression == Compression::zstd,
              path.string(), ": is named ", extension, ", but does not begin as a zstd file does");
  return compression;
}

std::unique_ptr<ByteStream> open_byte_stream(const fs::path& path, RawObserver observer) {
  const Compression compression = compression_of(path);
  auto file = std::make_unique<RawFile>(path, std::move(observer));
  switch (compression) {
    case Compression::none: return file;
    case Compression::gzip: return open_gzip(std::move(file));
    case Compression::zstd: return open_zstd(std::move(file));
  }
  fail("unknown compression");
}

int64_t ByteStream::skip(int64_t count) {
  std::array<char, 1 << 16> dropped;
  int64_t done = 0;
  while (done < count) {
    const auto rest = static_cast<size_t>(count - done);
    const size_t n = read(dropped.data(), std::min(dropped.size(), rest));
    if (n == 0) break;
    done += static_cast<int64_t>(n);
  }
  return done;
}

}  // namespace quern
