#include "data/token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "base/error.h"

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
  file_.emplace(part_, O_WRONLY | fresh);
  if (!*file_) fail_with_errno(part_, "cannot be opened");
  const off_t size = ::lseek(file_->get(), 0, SEEK_END);
  QUERN_CHECK(kept == 0 || size >= end_, part_.string(), ": has ", size,
              " bytes, expected at least ", end_);
  if (retried([&] { return ::ftruncate(file_->get(), end_); }) != 0) {
    fail_with_errno(part_, "cannot be written");
  }
  buffer_.reserve(kBuffer);
}

void TokenFileWriter::put(std::span<const std::byte> bytes, int64_t offset) {
  if (!file_->write(bytes, offset)) fail_with_errno(part_, "cannot be written");
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
  if (::fdatasync(file_->get()) != 0) fail_with_errno(part_, "cannot be written to disk");
}

void TokenFileWriter::commit() {
  flush();
  if (encoding_ != TokenEncoding::raw_u16) put(llmc_header(tokens_, encoding_), 0);
  if (!file_->sync()) fail_with_errno(part_, "cannot be written to disk");
  const auto renamed = [&] { return ::rename(part_.c_str(), path_.c_str()); };
  if (!file_->close() || retried(renamed) != 0) fail_with_errno(part_, "cannot be put in place");
}

}  // namespace quern
