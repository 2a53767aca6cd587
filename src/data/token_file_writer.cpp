#include "data/token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "io/retry.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBuffer = size_t{1} << 20;

}  // namespace

int64_t TokenFileWriter::header_bytes(TokenEncoding encoding) {
  return encoding == TokenEncoding::raw_u16 ? 0
                                            : static_cast<int64_t>(llmc_header(0, encoding).size());
}

TokenFileWriter::TokenFileWriter(fs::path path, TokenEncoding encoding, int64_t kept)
    : path_(std::move(path)),
      part_(fs::path(path_) += ".part"),
      encoding_(encoding),
      tokens_(kept),
      end_(header_bytes(encoding) + kept * bytes_per_token(encoding)) {
  if (kept > 0 && !fs::exists(part_) && fs::exists(path_)) fs::rename(path_, part_);
  const int fresh = kept > 0 ? 0 : O_CREAT | O_TRUNC;
  fd_ = retried([&] { return ::open(part_.c_str(), O_WRONLY | O_CLOEXEC | fresh, 0666); });
  if (fd_ < 0) fail_with_errno("cannot be opened");
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  if (kept > 0 && size < end_) {
    ::close(std::exchange(fd_, -1));
    fail(cat(part_.string(), ": has ", size, " bytes, expected at least ", end_));
  }
  if (retried([&] { return ::ftruncate(fd_, end_); }) != 0) fail_with_errno("cannot be written");
  buffer_.reserve(kBuffer);
}

TokenFileWriter::~TokenFileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void TokenFileWriter::fail_with_errno(const char* what) const {
  fail(cat(part_.string(), ": ", what, ": ", std::strerror(errno)));
}

void TokenFileWriter::put(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(n));  // after a short write, the next call fails
    offset += n;
  }
}

void TokenFileWriter::flush() {
  put(buffer_, end_);
  end_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void TokenFileWriter::write(std::span<const std::byte> elements) {
  const int64_t size = bytes_per_token(encoding_);
  const auto count = static_cast<int64_t>(elements.size()) / size;
  QUERN_CHECK(count * size == static_cast<int64_t>(elements.size()), path_.string(), ": ",
              elements.size(), " bytes are not a whole number of tokens of ", size, " bytes");
  QUERN_CHECK(
      encoding_ == TokenEncoding::raw_u16 || count <= std::numeric_limits<int32_t>::max() - tokens_,
      path_.string(), ": more tokens than llm.c's header can count");
  tokens_ += count;
  if (buffer_.size() + elements.size() > kBuffer) flush();
  if (elements.size() >= kBuffer) {
    put(elements, end_);
    end_ += static_cast<int64_t>(elements.size());
  } else {
    buffer_.insert(buffer_.end(), elements.begin(), elements.end());
  }
}

void TokenFileWriter::sync() {
  flush();
  if (::fdatasync(fd_) != 0) fail_with_errno("cannot be written to disk");
}

void TokenFileWriter::commit() {
  flush();
  if (encoding_ != TokenEncoding::raw_u16) {
    const auto header = llmc_header(tokens_, encoding_);
    put(header, 0);
  }
  if (retried([&] { return ::fsync(fd_); }) != 0) fail_with_errno("cannot be written to disk");
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0 || retried([&] { return ::rename(part_.c_str(), path_.c_str()); }) != 0) {
    fail_with_errno("cannot be put in place");
  }
}

}  // namespace quern
