#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "io/atomic_file.h"

namespace quern {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

constexpr int32_t kMagicU16 = 20240520, kVersionU16 = 1;
constexpr int32_t kMagicU32 = 20240801, kVersionU32 = 7;
constexpr size_t kHeaderInts = 256;
constexpr size_t kHeaderBytes = kHeaderInts * sizeof(int32_t);

int32_t header_int(std::span<const std::byte> bytes, size_t i) {
  int32_t value;
  std::memcpy(&value, bytes.data() + i * sizeof(int32_t), sizeof value);
  return value;
}

bool begins_with_magic(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(int32_t)) return false;
  const int32_t magic = header_int(bytes, 0);
  return magic == kMagicU16 || magic == kMagicU32;
}

struct Header {
  TokenEncoding encoding;
  int64_t count;
};

Header read_llmc_header(const MappedFile& file) {
  const std::string path = file.path().string();
  const std::span<const std::byte> bytes = file.bytes();
  QUERN_CHECK(begins_with_magic(bytes), path, ": does not begin with llm.c's magic number ",
              kMagicU16, " or ", kMagicU32);
  QUERN_CHECK(bytes.size() >= kHeaderBytes, path, ": has ", bytes.size(),
              " bytes, expected an llm.c header of ", kHeaderBytes);
  const bool wide = header_int(bytes, 0) == kMagicU32;
  const int32_t version = header_int(bytes, 1), expected = wide ? kVersionU32 : kVersionU16;
  QUERN_CHECK(version == expected, path, ": llm.c header has version ", version, ", expected ",
              expected, " with magic ", header_int(bytes, 0));

  const Header header{wide ? TokenEncoding::llmc_u32 : TokenEncoding::llmc_u16,
                      header_int(bytes, 2)};
  const int64_t size = bytes_per_token(header.encoding);
  const auto payload = static_cast<int64_t>(bytes.size() - kHeaderBytes);
  QUERN_CHECK(header.count >= 0 && payload == header.count * size, path, ": has ", payload,
              " bytes behind the llm.c header, expected ", header.count, " tokens of ", size,
              " bytes, as the header says");
  return header;
}

}  // namespace

int64_t bytes_per_token(TokenEncoding encoding) {
  return encoding == TokenEncoding::llmc_u32 ? 4 : 2;
}

std::array<std::byte, 1024> llmc_header(int64_t count, TokenEncoding encoding) {
  static_assert(kHeaderBytes == 1024);
  const bool wide = encoding == TokenEncoding::llmc_u32;
  std::array<int32_t, kHeaderInts> header{};
  header[0] = wide ? kMagicU32 : kMagicU16;
  header[1] = wide ? kVersionU32 : kVersionU16;
  header[2] = static_cast<int32_t>(count);
  return std::bit_cast<std::array<std::byte, 1024>>(header);
}

TokenFile TokenFile::open(const std::filesystem::path& path, DataFormat format) {
  QUERN_CHECK(format != DataFormat::text, path.string(), ": text is not a token file");
  MappedFile file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file.bytes();
  QUERN_CHECK(!bytes.empty(), path.string(), ": is empty, expected tokens");

  const bool llmc =
      format == DataFormat::llmc || (format == DataFormat::automatic && begins_with_magic(bytes));
  if (llmc) {
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

// Mappings begin on a page and the header is 1024 bytes, so the tokens are aligned.
template <class F>
auto TokenFile::visit(F&& f) const {
  if (bytes_per_token(encoding_) == 4) return f(reinterpret_cast<const uint32_t*>(tokens_));
  return f(reinterpret_cast<const uint16_t*>(tokens_));
}

int32_t TokenFile::operator[](int64_t i) const {
  return visit([i](const auto* tokens) { return static_cast<int32_t>(tokens[i]); });
}

void TokenFile::copy(int64_t begin, int64_t count, int32_t* out) const {
  QUERN_CHECK(begin >= 0 && count >= 0 && begin <= size_ && count <= size_ - begin, path().string(),
              ": tokens [", begin, ", ", begin, " + ", count, ") asked for, the file has ", size_);
  file_.check_unchanged();
  visit([&](const auto* tokens) {
    std::transform(tokens + begin, tokens + begin + count, out,
                   [](auto token) { return static_cast<int32_t>(token); });
  });
}

void TokenFile::check_vocabulary(int64_t vocab_size) const {
  visit([&](const auto* tokens) {
    const auto* end = tokens + size_;
    const auto* bad = std::find_if(tokens, end, [=](int64_t token) { return token >= vocab_size; });
    QUERN_CHECK(bad == end, path().string(), ": token ", bad - tokens, " is ", *bad,
                ", expected less than the vocabulary size ", vocab_size);
  });
}

bool has_llmc_magic(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a FIFO would wait
  std::array<std::byte, sizeof(int32_t)> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(begin.data()), begin.size());
  return file.gcount() == static_cast<std::streamsize>(begin.size()) && begins_with_magic(begin);
}

namespace {

template <class Element>
void write_elements(AtomicFile& file, std::span<const int32_t> tokens) {
  const std::vector<Element> elements(tokens.begin(), tokens.end());
  file.write(std::as_bytes(std::span(elements)));
}

void check_tokens(const std::filesystem::path& path, std::span<const int32_t> tokens,
                  TokenEncoding encoding) {
  QUERN_CHECK(encoding == TokenEncoding::raw_u16 ||
                  tokens.size() <= size_t{std::numeric_limits<int32_t>::max()},
              path.string(), ": ", tokens.size(), " tokens are more than llm.c's header can count");
  const int32_t largest = encoding == TokenEncoding::llmc_u32
                              ? std::numeric_limits<int32_t>::max()
                              : int32_t{std::numeric_limits<uint16_t>::max()};
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [=](int32_t token) { return token < 0 || token > largest; });
  QUERN_CHECK(bad == tokens.end(), path.string(), ": token ", bad - tokens.begin(), " is ", *bad,
              ", expected 0 to ", largest);
}

}  // namespace

void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      TokenEncoding encoding) {
  check_tokens(path, tokens, encoding);
  AtomicFile file(path);
  if (encoding != TokenEncoding::raw_u16) {
    file.write(llmc_header(static_cast<int64_t>(tokens.size()), encoding));
  }
  if (bytes_per_token(encoding) == 4) {
    write_elements<uint32_t>(file, tokens);
  } else {
    write_elements<uint16_t>(file, tokens);
  }
  file.commit();
}

}  // namespace quern
