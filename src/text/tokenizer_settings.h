// Settings beside a tokenizer in a Hugging Face folder: tokenizer_config.json, and the end token
// from generation_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/json_file.h"
#include "text/added_tokens.h"

namespace quern {

struct TokenizerSettings {
  std::string file = "tokenizer_config.json";  // for messages
  bool found = false;                          // the file exists
  std::string tokenizer_class;                 // "LlamaTokenizerFast"; empty: not given
  std::optional<std::string> begin;            // bos_token
  std::optional<std::string> end;              // eos_token
  std::optional<bool> add_begin;  // add_bos_token; a SentencePiece's default is `found`
  bool add_prefix_space = false;
  bool split_special = false;  // split_special_tokens: see BpeDefinition
  // The space that many SentencePiece models put before a text also follows each special token.
  bool legacy = false;
  std::vector<AddedToken> added;          // added_tokens_decoder
  std::optional<int32_t> generation_end;  // the first eos_token_id of generation_config.json
};

// Reads {"content": "</s>", "special": true, ...}. Throws naming the location of a missing value.
AddedToken read_added_token(const JsonPlace& token, int32_t id);

// Missing files leave the defaults. Throws naming the file and the location in it.
TokenizerSettings read_tokenizer_settings(const std::filesystem::path& folder);

}  // namespace quern
