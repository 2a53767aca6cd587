#include "text/byte_tokenizer.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

TEST(ByteTokenizer, RoundTripsEveryByte) {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  const std::vector<int32_t> tokens = ByteTokenizer().encode(text);
  ASSERT_EQ(tokens.size(), 256u);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
  EXPECT_EQ(ByteTokenizer().decode(tokens), text);
}

TEST(ByteTokenizer, EndOfTextAddsNothing) {
  EXPECT_EQ(ByteTokenizer().decode(std::vector<int32_t>{'a', kEndOfText, 'b'}), "ab");
}

TEST(ByteTokenizer, RefusesOtherTokens) {
  testing_support::expect_error(
      [] {
        ByteTokenizer().decode(std::vector<int32_t>{65, 257});
      },
      {"token 1 is 257"});
  testing_support::expect_error([] { ByteTokenizer().decode(std::vector<int32_t>{-1}); },
                                {"token 0 is -1"});
}

TEST(ByteTokenizer, IsATokenizer) {
  const ByteTokenizer tokenizer;
  const std::vector<int32_t> tokens = tokenizer.encode("a\xFF<|endoftext|>");
  EXPECT_EQ(tokens, ByteTokenizer().encode("a\xFF<|endoftext|>"));
  EXPECT_EQ(tokenizer.decode(tokens), "a\xFF<|endoftext|>");
  EXPECT_EQ(tokenizer.vocabulary(), 257);
  EXPECT_EQ(tokenizer.end_token(), 256);
  EXPECT_EQ(tokenizer.begin_token(), std::nullopt);
  EXPECT_EQ(tokenizer.hash(), "bytes");
}

}  // namespace
}  // namespace quern
