// Memory-mapped token files. Reads and writes two formats:
//   nanoGPT: raw little-endian uint16, without a header.
//   llm.c:   256 little-endian int32 of header (magic, version, number of tokens, zeros), then the
//            tokens: magic 20240520 version 1 is uint16, magic 20240801 version 7 is uint32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/enum_names.h"
#include "io/descriptor.h"
#include "io/mapped_file.h"

namespace quern {

// The format of a data path. text: bytes; nanogpt: raw little-endian uint16 tokens; llmc: tokens
// after llm.c's header; automatic: by name and content (see open_dataset).
enum class DataFormat { automatic, text, nanogpt, llmc };

enum class TokenEncoding { raw_u16, llmc_u16, llmc_u32 };
template <>
inline constexpr std::array kNamesOf<TokenEncoding>{"raw_u16", "llmc_u16", "llmc_u32"};

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
// The header of llm.c's two formats; `count` tokens follow it.
std::array<std::byte, 1024> llmc_header(int64_t count, TokenEncoding encoding);

// True when the file begins with one of llm.c's magic numbers.
bool has_llmc_magic(const std::filesystem::path& path);

// Writes a token file of any length sequentially.
class TokenFileWriter {
 public:
  // Writes PATH.part in the given encoding; it stays until commit(). With `kept` > 0, continues
  // after that many tokens of an existing PATH.part (or PATH) and drops the rest. Throws naming the
  // file when it has fewer tokens, or when it cannot be written.
  TokenFileWriter(std::filesystem::path path, TokenEncoding encoding, int64_t kept = 0);

  // `elements`: tokens in the file's encoding, little-endian uint16 or uint32.
  void write(std::span<const std::byte> elements);
  int64_t tokens() const { return tokens_; }            // written and kept
  void sync();                                          // flushes all tokens to disk
  void commit();                                        // completes the file and renames it to PATH
  static int64_t header_bytes(TokenEncoding encoding);  // before the first token

 private:
  void flush();
  void put(std::span<const std::byte> bytes, int64_t offset);

  std::filesystem::path path_, part_;
  TokenEncoding encoding_;
  std::optional<Descriptor> file_;
  int64_t tokens_;
  int64_t end_;  // bytes written to the file; the rest is in buffer_
  std::vector<std::byte> buffer_;
};

}  // namespace quern
