// Memory-mapped token files. Reads and writes two formats:
//   nanoGPT: raw little-endian uint16, without a header.
//   llm.c:   256 little-endian int32 of header (magic, version, number of tokens, zeros), then the
//            tokens: magic 20240520 version 1 is uint16, magic 20240801 version 7 is uint32.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>

#include "io/mapped_file.h"

namespace quern {

// The format of a data path. text: bytes; nanogpt: raw little-endian uint16 tokens; llmc: tokens
// after llm.c's header; automatic: by name and content (see open_dataset).
enum class DataFormat { automatic, text, nanogpt, llmc };

enum class TokenEncoding { raw_u16, llmc_u16, llmc_u32 };

class TokenFile {
 public:
  // The automatic format is llm.c's if the file begins with one of its magics, otherwise raw
  // uint16. Throws naming the file when it is empty, truncated or not in the given format.
  static TokenFile open(const std::filesystem::path& path,
                        DataFormat format = DataFormat::automatic);

  const std::filesystem::path& path() const { return file_.path(); }
  TokenEncoding encoding() const { return encoding_; }
  int64_t size() const { return size_; }  // tokens

  // Copies tokens [begin, begin + count) to out. Throws when the range exceeds the file, and when
  // the file was written to since it was opened.
  void copy(int64_t begin, int64_t count, int32_t* out) const;

 private:
  TokenFile(MappedFile file, TokenEncoding encoding, std::span<const std::byte> tokens);

  MappedFile file_;
  TokenEncoding encoding_;
  const std::byte* tokens_;
  int64_t size_;
};

int64_t bytes_per_token(TokenEncoding encoding);
const char* name_of(TokenEncoding encoding);  // "raw_u16", "llmc_u16" or "llmc_u32"
// The header of llm.c's two formats; `count` tokens follow it.
std::array<std::byte, 1024> llmc_header(int64_t count, TokenEncoding encoding);

// True when the file begins with one of llm.c's magic numbers.
bool has_llmc_magic(const std::filesystem::path& path);

}  // namespace quern
