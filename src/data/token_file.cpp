#include "data/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quern {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

// The first two numbers of an encoding's llm.c header, and the bytes of a token.
struct Format {
  TokenEncoding encoding;
  int32_t magic, version;
  int64_t bytes;
};
constexpr Format kFormats[] = {{TokenEncoding::raw_u16, 0, 0, 2},
                               {TokenEncoding::llmc_u16, 20240520, 1, 2},
                               {TokenEncoding::llmc_u32, 20240801, 7, 4}};

const Format& format_of(TokenEncoding encoding) {
  for (const Format& format : kFormats) {
    if (format.encoding == encoding) return format;
  }
  fail("unknown token encoding");
}

constexpr size_t kBuffer = size_t{1} << 20;  // of a writer
constexpr size_t kHeaderInts = 256;
constexpr size_t kHeaderBytes = kHeaderInts * sizeof(int32_t);

int32_t header_int(std::span<const std::byte> bytes, size_t i) {
  int32_t value;
  std::memcpy(&value, bytes.data() + i * sizeof(int32_t), sizeof value);
  return value;
}

// The format whose magic number begins the bytes; null: none.
const Format* llmc_format(std::span<const std::byte> bytes) {
  const int32_t magic = bytes.size() < sizeof(int32_t) ? 0 : header_int(bytes, 0);
  for (const Format& format : kFormats) {
    if (magic != 0 && magic == format.magic) return &format;
  }
  return nullptr;
}

const Format& read_llmc_header(const MappedFile& file) {
  const std::string path = file.path().string();
  const std::span<const std::byte> bytes = file.bytes();
  const Format* format = llmc_format(bytes);
  QUERN_CHECK(format, path, ": does not begin with llm.c's magic number ", kFormats[1].magic,
              " or ", kFormats[2].magic);
  QUERN_CHECK(bytes.size() >= kHeaderBytes, path, ": has ", bytes.size(),
              " bytes, expected an llm.c header of ", kHeaderBytes);
  const int32_t version = header_int(bytes, 1);
  QUERN_CHECK(version == format->version, path, ": llm.c header has version ", version,
              ", expected ", format->version, " with magic ", format->magic);
  const int64_t count = header_int(bytes, 2);
  const auto payload = static_cast<int64_t>(bytes.size() - kHeaderBytes);
  QUERN_CHECK(count >= 0 && payload == count * format->bytes, path, ": has ", payload,
              " bytes behind the llm.c header, expected ", count, " tokens of ", format->bytes,
              " bytes, as the header says");
  return *format;
}

}  // namespace

int64_t bytes_per_token(TokenEncoding encoding) {
  return format_of(encoding).bytes;
}

std::array<std::byte, 1024> llmc_header(int64_t count, TokenEncoding encoding) {
  static_assert(kHeaderBytes == 1024);
  const Format& format = format_of(encoding);
  std::array<int32_t, kHeaderInts> header{format.magic, format.version,
                                          static_cast<int32_t>(count)};
  return std::bit_cast<std::array<std::byte, 1024>>(header);
}

TokenFile TokenFile::open(const fs::path& path, DataFormat format) {
  QUERN_CHECK(format != DataFormat::text, path.string(), ": text is not a token file");
  MappedFile file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file.bytes();
  QUERN_CHECK(!bytes.empty(), path.string(), ": is empty, expected tokens");

  if (format == DataFormat::llmc || (format == DataFormat::automatic && llmc_format(bytes))) {
    const TokenEncoding encoding = read_llmc_header(file).encoding;
    return TokenFile(std::move(file), encoding, bytes.subspan(kHeaderBytes));
  }
  constexpr int32_t kMagicModel = 20240326;
  QUERN_CHECK(bytes.size() < sizeof(int32_t) || header_int(bytes, 0) != kMagicModel, path.string(),
              ": is a GPT-2 model of llm.c, expected tokens");
  QUERN_CHECK(bytes.size() % 2 == 0, path.string(), ": has ", bytes.size(),
              " bytes, expected an even number (raw uint16 tokens)");
  return TokenFile(std::move(file), TokenEncoding::raw_u16, bytes);
}

TokenFile::TokenFile(MappedFile file, TokenEncoding encoding, std::span<const std::byte> tokens)
    : file_(std::move(file)),
      encoding_(encoding),
      tokens_(tokens.data()),
      size_(static_cast<int64_t>(tokens.size()) / bytes_per_token(encoding)) {}

void TokenFile::copy(int64_t begin, int64_t count, int32_t* out) const {
  QUERN_CHECK(begin >= 0 && count >= 0 && begin <= size_ && count <= size_ - begin, path().string(),
              ": tokens [", begin, ", ", begin, " + ", count, ") asked for, the file has ", size_);
  file_.check_unchanged();
  // Mappings begin on a page and the header is 1024 bytes, so the tokens are aligned.
  if (bytes_per_token(encoding_) == 4) {
    std::copy_n(reinterpret_cast<const int32_t*>(tokens_) + begin, count, out);
  } else {
    std::copy_n(reinterpret_cast<const uint16_t*>(tokens_) + begin, count, out);
  }
}

bool has_llmc_magic(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;  // a FIFO would wait
  std::array<std::byte, sizeof(int32_t)> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(begin.data()), begin.size());
  return file.gcount() == static_cast<std::streamsize>(begin.size()) && llmc_format(begin);
}

int64_t TokenFileWriter::header_bytes(TokenEncoding encoding) {
  return encoding == TokenEncoding::raw_u16 ? 0 : static_cast<int64_t>(kHeaderBytes);
}

TokenFileWriter::TokenFileWriter(fs::path path, TokenEncoding encoding, int64_t kept)
    : path_(std::move(path)),
      part_(fs::path(path_) += ".part"),
      encoding_(encoding),
      tokens_(kept),
      end_(header_bytes(encoding) + kept * bytes_per_token(encoding)) {
  const auto reopened = [&] { return ::rename(path_.c_str(), part_.c_str()); };
  if (kept > 0 && !fs::exists(part_) && fs::exists(path_) && retried(reopened) != 0) {
    fail_with_errno(path_, "cannot be renamed");
  }
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
  const auto synced = [&] { return ::fdatasync(file_->get()); };
  if (retried(synced) != 0) fail_with_errno(part_, "cannot be written to disk");
}

void TokenFileWriter::commit() {
  flush();
  if (encoding_ != TokenEncoding::raw_u16) put(llmc_header(tokens_, encoding_), 0);
  if (!file_->sync()) fail_with_errno(part_, "cannot be written to disk");
  const auto renamed = [&] { return ::rename(part_.c_str(), path_.c_str()); };
  if (!file_->close() || retried(renamed) != 0) fail_with_errno(part_, "cannot be put in place");
}

}  // namespace quern
