// Metadata of a token file: X.json next to X.bin, as `quern data prepare` writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/token_file.h"
#include "io/checksum.h"

namespace quern {

struct TokenSidecar {
  static constexpr int64_t kVersion = 1;

  TokenEncoding encoding = TokenEncoding::llmc_u16;
  int64_t tokens = 0;
  int64_t documents = 0;             // those that begin in this file; the last may end in the next
  int64_t vocabulary = 0;            // of the tokenizer: every token is below it
  std::optional<int32_t> end_token;  // follows each document; empty: none
  std::string tokenizer_kind;        // Tokenizer::kind() and hash()
  std::string tokenizer_hash;
  FileDigest file;  // the whole token file, header included

  friend bool operator==(const TokenSidecar&, const TokenSidecar&) = default;
};

// Maps "a/train_00000.bin" to "a/train_00000.json".
std::filesystem::path sidecar_path(const std::filesystem::path& token_file);

// Writes the sidecar atomically.
void write_token_sidecar(const std::filesystem::path& token_file, const TokenSidecar& sidecar);

// Empty when the token file has no sidecar. Throws naming the sidecar and the key when a value is
// missing or invalid, or the version differs.
std::optional<TokenSidecar> read_token_sidecar(const std::filesystem::path& token_file);

// Throws naming both files when the encoding, number of tokens or size differs. Reads no token.
void check_token_sidecar(const TokenSidecar& sidecar, const TokenFile& file);

// Throws when the checksum differs. Reads the whole file, in bounded memory.
void verify_token_file(const TokenSidecar& sidecar, const std::filesystem::path& token_file);

// The digest of a file of any size, in bounded memory.
FileDigest digest_of_file(const std::filesystem::path& path);

}  // namespace quern
