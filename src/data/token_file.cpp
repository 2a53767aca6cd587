#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace quern {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

// An encoding's name, the first two numbers of its llm.c header, and the bytes of a token.
struct Format {
  TokenEncoding encoding;
  const char* name;
  int32_t magic, version;
  int64_t bytes;
};
constexpr Format kFormats[] = {{TokenEncoding::raw_u16, "raw_u16", 0, 0, 2},
                               {TokenEncoding::llmc_u16, "llmc_u16", 20240520, 1, 2},
                               {TokenEncoding::llmc_u32, "llmc_u32", 20240801, 7, 4}};

const Format& format_of(TokenEncoding encoding) {
  for (const Format& format : kFormats) {
    if (format.encoding == encoding) return format;
  }
  fail("unknown token encoding");
}

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

const char* name_of(TokenEncoding encoding) {
  return format_of(encoding).name;
}

std::array<std::byte, 1024> llmc_header(int64_t count, TokenEncoding encoding) {
  static_assert(kHeaderBytes == 1024);
  const Format& format = format_of(encoding);
  std::array<int32_t, kHeaderInts> header{format.magic, format.version,
                                          static_cast<int32_t>(count)};
  return std::bit_cast<std::array<std::byte, 1024>>(header);
}

TokenFile TokenFile::open(const std::filesystem::path& path, DataFormat format) {
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

bool has_llmc_magic(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;  // a FIFO would wait
  std::array<std::byte, sizeof(int32_t)> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(begin.data()), begin.size());
  return file.gcount() == static_cast<std::streamsize>(begin.size()) && llmc_format(begin);
}

}  // namespace quern
