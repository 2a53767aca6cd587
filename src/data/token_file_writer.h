// Writes a token file of any length sequentially.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "data/token_file.h"
#include "io/descriptor.h"

namespace quern {

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
