// Merging against the definition: apply the merge of the lowest rank, leftmost first, until none is
// left.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace quern {
namespace {

std::array<int32_t, 256> identity() {
  std::array<int32_t, 256> tokens{};
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  return tokens;
}

std::vector<int32_t> by_definition(const std::string& piece, const std::vector<BpeMerge>& merges) {
  std::vector<int32_t> tokens(piece.begin(), piece.end());
  for (;;) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left != tokens[i] || merges[rank].right != tokens[i + 1]) continue;
        best = rank;
        at = i;
      }
    }
    if (best == merges.size()) return tokens;
    tokens[at] = merges[best].result;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOfThem) {
  const std::vector<BpeMerge> merges{{'b', 'c', 300}, {'a', 'b', 301}, {'a', 'a', 302}};
  const Bpe bpe(identity(), merges);
  const auto encode = [&](const std::string& piece) {
    std::vector<int32_t> tokens;
    bpe.encode(piece, tokens);
    return tokens;
  };
  EXPECT_EQ(encode("abc"), (std::vector<int32_t>{'a', 300}));
  EXPECT_EQ(encode("abab"), (std::vector<int32_t>{301, 301}));
  EXPECT_EQ(encode("aaa"), (std::vector<int32_t>{302, 'a'}));
  EXPECT_EQ(encode(""), std::vector<int32_t>{});
  EXPECT_EQ(encode("z"), std::vector<int32_t>{'z'});
}

// Random merges over two letters; some produce the inputs of others.
TEST(Bpe, AgreesWithTheDefinition) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> known{'a', 'b'};
    std::vector<BpeMerge> merges;
    std::map<std::pair<int32_t, int32_t>, bool> seen;
    for (int32_t next = 300; merges.size() < 1 + below(12);) {
      const BpeMerge merge{known[below(known.size())], known[below(known.size())], next};
      if (std::exchange(seen[{merge.left, merge.right}], true)) continue;
      merges.push_back(merge);
      known.push_back(next++);
    }
    const Bpe bpe(identity(), merges);
    for (size_t length : {1, 2, 3, 7, 31, 60}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece += below(3) == 0 ? 'b' : 'a';
      std::vector<int32_t> tokens;
      bpe.encode(piece, tokens);
      ASSERT_EQ(tokens, by_definition(piece, merges)) << piece;
    }
  }
}

TEST(BpeCache, FindsWhatItWasGivenAndStaysBounded) {
  BpeCache cache;
  const std::vector<int32_t> tokens{1, 2, 3};
  cache.insert("word", tokens);
  ASSERT_NE(cache.find("word"), nullptr);
  EXPECT_EQ(*cache.find("word"), tokens);
  EXPECT_EQ(cache.find("wor"), nullptr);
  cache.insert(std::string(1000, 'x'), tokens);
  EXPECT_EQ(cache.find(std::string(1000, 'x')), nullptr);  // long pieces rarely repeat
}

}  // namespace
}  // namespace quern
