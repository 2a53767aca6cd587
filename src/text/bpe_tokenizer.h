// A byte-level BPE tokenizer: GPT-2's, Llama 3's, Qwen2.5's. Read from Hugging Face's
// tokenizer.json by text/hf_tokenizer.h.
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

// What a tokenizer is made of.
struct BpeDefinition {
  // Bytes of each token by id (without the added ones); ids are 0 to n - 1, a missing one is "".
  std::vector<std::string> vocabulary;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  bool nfc = false;            // text is brought to Unicode's normal form C first
  bool add_prefix_space = false;
  std::vector<std::string> patterns;  // cut one after the other
  std::vector<AddedToken> added;
  std::optional<int32_t> begin_token, end_token;  // as Tokenizer has them
  std::string hash;
};

class BpeTokenizer : public Tokenizer {
 public:
  // Throws when a byte has no token.
  explicit BpeTokenizer(BpeDefinition definition);

  // Any bytes: those that are no UTF-8 are pieces of their own, and nothing is lost.
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
  // The id of a token by its text, added ones included; -1: none.
  int32_t find(std::string_view content) const;

 private:
  void encode_normalized(std::string_view text, std::vector<int32_t>& tokens,
                         BpeCache& cache) const;
  void encode_valid(std::string_view text, std::vector<int32_t>& tokens, BpeCache& cache) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens, BpeCache& cache) const;

  BpeDefinition definition_;
  std::vector<SplitPattern> patterns_;
  std::unique_ptr<Bpe> bpe_;
  AddedTokenFinder raw_, normalized_;
  std::vector<std::string> bytes_;                     // by id; added tokens too
  std::vector<bool> special_;                          // by id
  std::unordered_map<std::string_view, int32_t> ids_;  // into bytes_
};

}  // namespace quern
