// A SentencePiece tokenizer (Kudo and Richardson 2018): that of Llama 2, Mistral and TinyLlama, and
// of `quern tokenizer train`. text/tokenizer_files.h opens it from its tokenizer.model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_settings.h"

namespace quern {

// Recognises special tokens in a text ("</s>"), as transformers does. Invalid UTF-8 becomes byte
// tokens if the model has them (byte fallback), otherwise U+FFFD.
class SentencePieceTokenizer : public Tokenizer {
 public:
  // `model`: the content of a tokenizer.model. Throws when it cannot be read.
  explicit SentencePieceTokenizer(std::string model, TokenizerSettings settings = {});

  std::unique_ptr<TokenEncoder> encoder() const override;
  using Tokenizer::encode;
  // Appends to `tokens`; `cache` is this tokenizer's and this thread's.
  void encode(std::string_view text, std::vector<int32_t>& tokens, BpeCache& cache) const;

  // Exact for models that neither normalise text nor put a space before it. If the model puts one
  // there, one leading space is dropped. For a non-empty a, decode(a, b) begins with decode(a).
  std::string decode(std::span<const int32_t> tokens) const override;

  int64_t vocabulary() const override { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int32_t> end_token() const override { return end_; }
  std::optional<int32_t> begin_token() const override { return begin_; }
  std::string hash() const override { return hash_; }
  std::string kind() const override { return "sentencepiece"; }

  bool has_byte_fallback() const { return byte_fallback_; }
  bool adds_prefix_space() const { return adds_prefix_space_; }
  // Ids of the model's own special pieces; -1: none.
  struct SpecialPieces {
    int32_t unknown = -1, begin = -1, end = -1;
  };
  SpecialPieces special_pieces() const;
  // The text of a token: "</s>", "\u2581the".
  std::string piece(int32_t id) const;
  // True for a token without text: </s>, <unk> and so on.
  bool is_special(int32_t id) const { return special_[static_cast<size_t>(id)]; }
  // True for the 256 byte fallback tokens: <0x7F>.
  bool is_byte(int32_t id) const;
  // The id of a token by its text, including special tokens; -1: none.
  int32_t find(std::string_view content) const;

 private:
  struct Processors;

  void read_pieces();
  bool keeps_text() const;
  void find_ends();
  void encode_part(std::string_view part, bool first, std::vector<int32_t>& tokens,
                   BpeCache& cache) const;
  void encode_valid(std::string_view text, bool first, std::vector<int32_t>& tokens,
                    BpeCache& cache) const;

  TokenizerSettings settings_;
  std::string hash_;
  std::shared_ptr<Processors> processors_;
  AddedTokenFinder added_;
  bool byte_fallback_ = false, adds_prefix_space_ = false;
  bool cuts_words_ = false;  // no token spans two words or lines
  int32_t byte_tokens_[256] = {};
  std::optional<int32_t> begin_, end_;
  std::vector<std::string> bytes_;  // by id; empty for special tokens
  std::vector<bool> special_;       // by id
};

// The reason in a message of the library, without "src/file.cc(123) [condition] ".
std::string sentencepiece_reason(const std::string& message);

}  // namespace quern
