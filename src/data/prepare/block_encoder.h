// Encodes blocks of text as tokens, for prepare.h. This part of the work runs on all cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/document_reader.h"
#include "data/token_file.h"
#include "io/checksum.h"
#include "text/tokenizer.h"

namespace quern {

// A block and its source.
struct SourceBlock {
  TextBlock block;
  size_t source = 0;
  bool json_lines = false;
  std::optional<FileDigest> digest;  // of the source; only in its last block
  int64_t bytes_read = 0;            // from all sources so far
};

struct EncodedPart {
  int64_t tokens = 0;  // including the document's end token
  bool begins = false, ends = false;
};

struct EncodedBlock {
  std::vector<std::byte> elements;  // tokens in the token file's encoding
  std::vector<EncodedPart> parts;
  std::vector<BadInput> bad;
  int64_t empty = 0, text_bytes = 0, end_tokens_in_text = 0;
  ReadPosition end;
  size_t source = 0;
  std::optional<FileDigest> digest;
  int64_t bytes_read = 0;
};

struct EncodeSettings {
  std::optional<int32_t> end_token;
  TokenEncoding encoding = TokenEncoding::llmc_u16;
  std::string field;
  PieceSizes pieces;
};

// One per thread.
class BlockEncoder {
 public:
  BlockEncoder(const Tokenizer& tokenizer, EncodeSettings settings);
  EncodedBlock encode(SourceBlock source);

 private:
  void encode_lines(const TextBlock& block, EncodedBlock& out);
  void encode_document(std::string_view text, EncodedBlock& out);
  void encode_part(std::string_view text, bool begins, bool ends, EncodedBlock& out);
  template <class Element>
  void append_elements(EncodedBlock& out) const;

  EncodeSettings settings_;
  int64_t vocabulary_;
  std::unique_ptr<TokenEncoder> encoder_;
  PieceCutter cutter_;
  std::vector<int32_t> tokens_;
  std::string text_;
};

}  // namespace quern
