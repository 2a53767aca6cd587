// Byte-pair encoding of one piece of text: merges neighbours in the order in which the merges were
// learnt (Sennrich et al. 2016; on bytes as in GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace quern {

struct BpeMerge {
  int32_t left = 0, right = 0, result = 0;  // token ids
};

// Token ids by text.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const;
};
using BpeTokens = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// Cache of encoded pieces, since words repeat. One per thread.
class BpeCache {
 public:
  const std::vector<int32_t>* find(std::string_view piece) const;
  void insert(std::string_view piece, std::span<const int32_t> tokens);

 private:
  std::unordered_map<std::string, std::vector<int32_t>, TextHash, std::equal_to<>> pieces_;
};

// The encoder of a tokenizer that encodes with a cache.
template <class T>
class CachedEncoder : public TokenEncoder {
 public:
  explicit CachedEncoder(const T& tokenizer) : tokenizer_(tokenizer) {}
  void encode(std::string_view text, std::vector<int32_t>& tokens) override {
    tokenizer_.encode(text, tokens, cache_);
  }

 private:
  const T& tokenizer_;
  BpeCache cache_;
};

class Bpe {
 public:
  // byte_tokens: the token of each single byte; merges: highest priority first; characters (UTF-8):
  // those that start as one token instead of as their bytes.
  Bpe(const std::array<int32_t, 256>& byte_tokens, std::span<const BpeMerge> merges,
      BpeTokens characters = {});

  // Appends the tokens of `piece` (any bytes). Time: O(n log n) in its length.
  void encode(std::string_view piece, std::vector<int32_t>& tokens) const;

 private:
  struct Merged {
    int32_t rank = 0, result = 0;
  };
  // Open addressing: a lookup is one multiplication and mostly one cache line.
  struct Slot {
    uint64_t pair = kEmpty;
    Merged merged;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  const Merged* find(int32_t left, int32_t right) const;
  size_t slot_of(uint64_t pair) const;

  std::array<int32_t, 256> byte_tokens_;
  BpeTokens characters_;
  std::vector<Slot> slots_;  // a power of two
  int shift_ = 0;
};

}  // namespace quern
