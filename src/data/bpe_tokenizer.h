// A byte-level BPE tokenizer: GPT-2's, Llama 3's, Qwen2.5's. Read from Hugging Face's
// tokenizer.json by io/hf_tokenizer.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"
#include "data/pre_tokenizer.h"

namespace quern {

// A token that is found in the text before anything else is done to it: "<|endoftext|>".
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;     // left out of decoded text when the reader wants it so
  bool normalized = false;  // looked for after normalisation, rather than in the text as given
};

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
};

class BpeTokenizer {
 public:
  // Throws when a byte has no token.
  explicit BpeTokenizer(BpeDefinition definition);

  // Any bytes: those that are no UTF-8 are pieces of their own, and nothing is lost. Tokens that
  // models want around a text are not added.
  std::vector<int32_t> encode(std::string_view text) const;
  // Appends to `tokens`; `cache` is this tokenizer's and this thread's.
  void encode(std::string_view text, std::vector<int32_t>& tokens, BpeCache& cache) const;

  // The bytes that the tokens stand for, which may end within a character. Special tokens are left
  // out when `skip_special`. Throws naming position and value of a token that is none.
  std::string decode(std::span<const int32_t> tokens, bool skip_special = false) const;

  int64_t vocabulary() const { return static_cast<int64_t>(bytes_.size()); }  // highest id + 1
  // The id of a token by its text, added ones included; -1: none.
  int32_t find(std::string_view content) const;

 private:
  // Added tokens of one kind, looked for together: the leftmost, and of those the longest.
  class AddedFinder {
   public:
    void add(const AddedToken& token);
    void finish();
    bool empty() const { return tokens_.empty(); }
    // Calls text(part) and token(id) in turn, from left to right.
    template <class Text, class Token>
    void split(std::string_view whole, const Text& text, const Token& token) const;

   private:
    const AddedToken* at(std::string_view rest) const;
    std::vector<AddedToken> tokens_;  // the longest first
    bool begins_[256] = {};           // bytes that one of them begins with
  };

  void encode_normalized(std::string_view text, std::vector<int32_t>& tokens,
                         BpeCache& cache) const;
  void encode_valid(std::string_view text, std::vector<int32_t>& tokens, BpeCache& cache) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& tokens, BpeCache& cache) const;

  BpeDefinition definition_;
  std::vector<SplitPattern> patterns_;
  std::unique_ptr<Bpe> bpe_;
  AddedFinder raw_, normalized_;
  std::vector<std::string> bytes_;                     // by id; added tokens too
  std::vector<bool> special_;                          // by id
  std::unordered_map<std::string_view, int32_t> ids_;  // into bytes_
};

}  // namespace quern
