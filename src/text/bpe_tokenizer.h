// The BPE tokenizer of a Hugging Face tokenizer.json (read by text/hf_tokenizer.h), in one of two
// forms: byte-level (GPT-2, Llama 3, Qwen2.5), or SentencePiece's, on characters with byte fallback
// (Llama 2, Mistral, Gemma, Phi-3).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace quern {

// Vocabulary, merges and options of a tokenizer.
struct BpeDefinition {
  // Tokens by id 0 to n - 1, without the added ones; "" for a missing id. Byte-level: the token's
  // bytes. Byte fallback: "\u2581the", with U+2581 for a space, and "<0x7F>" for a byte.
  std::vector<std::string> vocabulary;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;  // a piece in the vocabulary becomes that token without merging
  bool nfc = false;            // converts text to Unicode's normal form C first
  enum class Prefix { never, first, always };
  Prefix prefix = Prefix::never;      // parts that get a space, unless they begin with one
  std::vector<std::string> patterns;  // split patterns, applied in order

  // Byte fallback: a character without a token becomes the tokens of its bytes.
  bool byte_fallback = false;
  bool prepend_mark = false;     // puts U+2581 before a text and before each part behind a token
  bool normalize_marks = false;  // spaces become U+2581 before `normalized` tokens are matched
  bool split_marks = false;      // a piece begins at each U+2581
  bool strip_decoded = false;    // decoding drops one leading space
  std::vector<AddedToken> added;
  bool split_special = false;  // special tokens are not matched in text: theirs is ordinary text
  std::optional<int32_t> begin_token, end_token;  // see Tokenizer
  std::string hash;
};

class BpeTokenizer : public Tokenizer {
 public:
  // Throws when a byte has no token of its own.
  explicit BpeTokenizer(BpeDefinition definition);

  // Accepts any bytes. Invalid UTF-8 forms pieces of its own, so decoding loses nothing of it.
  std::unique_ptr<TokenEncoder> encoder() const override;
  using Tokenizer::encode;
  // Appends to `tokens`; `cache` is this tokenizer's and this thread's.
  void encode(std::string_view text, std::vector<int32_t>& tokens, BpeCache& cache) const;

  std::string decode(std::span<const int32_t> tokens) const override {
    return decode(tokens, true);
  }
  // Special tokens as their text ("<|endoftext|>"), unless `skip_special`.
  std::string decode(std::span<const int32_t> tokens, bool skip_special) const;

  int64_t vocabulary() const override { return static_cast<int64_t>(bytes_.size()); }
  std::optional<int32_t> end_token() const override { return definition_.end_token; }
  std::optional<int32_t> begin_token() const override { return definition_.begin_token; }
  std::string hash() const override { return definition_.hash; }
  std::string kind() const override { return "bpe"; }
  // A token's text as its file gives it; an added token's is not normalized.
  std::string content(int32_t id) const;
  // The id of a token by its text, including added tokens; -1: none.
  int32_t find(std::string_view content) const;

 private:
  // Position of a UTF-8 run: at the start of the text, at the start of a part, or behind bytes.
  enum class Start { text, part, middle };

  void read_vocabulary();
  std::string normalize(std::string_view text, bool prepend) const;
  void encode_valid(std::string_view text, Start start, std::vector<int32_t>& tokens,
                    BpeCache& cache) const;
  void encode_part(std::string_view text, Start start, std::vector<int32_t>& tokens,
                   BpeCache& cache) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens, BpeCache& cache) const;

  BpeDefinition definition_;
  std::vector<SplitPattern> patterns_;
  std::unique_ptr<Bpe> bpe_;
  AddedTokenFinder raw_, normalized_;
  bool cuts_words_ = false;         // no merge spans two words, so each word is encoded separately
  std::vector<std::string> bytes_;  // by id; added tokens too
  std::vector<bool> special_;       // by id
  // The keys view definition_'s vocabulary and added tokens.
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace quern
