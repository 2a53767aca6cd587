#include "text/piece_cutter.h"

#include <gtest/gtest.h>

#include <random>

#include "support/files.h"
#include "support/random_text.h"
#include "text/byte_tokenizer.h"
#include "text/tokenizer_files.h"

namespace quern {
namespace {

using namespace testing_support;

// One token per byte, but every text begins with a token 1, so no border is safe.
class PrefixTokenizer : public ByteTokenizer {
 public:
  std::unique_ptr<TokenEncoder> encoder() const override {
    struct Encoder : TokenEncoder {
      void encode(std::string_view text, std::vector<int32_t>& tokens) override {
        tokens.push_back(1);
        for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
      }
    };
    return std::make_unique<Encoder>();
  }
  std::string kind() const override { return "prefix"; }
};

// Puts a space before each text, like SentencePiece.
class SpaceTokenizer : public ByteTokenizer {
 public:
  std::unique_ptr<TokenEncoder> encoder() const override {
    struct Encoder : TokenEncoder {
      void encode(std::string_view text, std::vector<int32_t>& tokens) override {
        tokens.push_back(' ');
        for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
      }
    };
    return std::make_unique<Encoder>();
  }
  std::string kind() const override { return "space"; }
};

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::string_view text,
                                   PieceSizes sizes) {
  PieceCutter cutter(tokenizer, sizes);
  std::vector<std::string> pieces;
  for (;;) {
    const Piece piece = cutter.next(text, true);
    pieces.emplace_back(text.substr(0, piece.size));
    if (piece.last) return pieces;
    text.remove_prefix(piece.size + piece.gap);
  }
}

using Strings = std::vector<std::string>;
constexpr PieceSizes kTiny{8, 20, 16};

TEST(PieceCutter, BytesAreCutAnywhere) {
  EXPECT_EQ(pieces_of(ByteTokenizer(), "0123456789abcdefXY", kTiny),
            (Strings{"01234567", "89abcdef", "XY"}));
  EXPECT_EQ(pieces_of(ByteTokenizer(), "01234567", kTiny), (Strings{"01234567"}));
  EXPECT_EQ(pieces_of(ByteTokenizer(), "", kTiny), (Strings{""}));
}

TEST(PieceCutter, SpaceThatTheTokenizerAddsIsDropped) {
  EXPECT_EQ(pieces_of(SpaceTokenizer(), "one line\nand two more words", kTiny),
            (Strings{"one line\nand", "two more", "words"}));
}

TEST(PieceCutter, WithoutASafeBorderALineEndsAPiece) {
  EXPECT_EQ(pieces_of(PrefixTokenizer(), "a few words\nand more words", kTiny),
            (Strings{"a few words\n", "and more words"}));
  // A line feed next to other white space is not a border.
  EXPECT_EQ(pieces_of(PrefixTokenizer(), "some words\n\nmore words\nx", kTiny),
            (Strings{"some words\n\nmore wor", "ds\nx"}));
  // A short text is not cut.
  EXPECT_EQ(pieces_of(PrefixTokenizer(), "a few words\nand more", kTiny),
            (Strings{"a few words\nand more"}));
}

TEST(PieceCutter, WithoutABorderACharacterStaysWhole) {
  // 19 bytes, then a character of three bytes, which does not fit into 20.
  const std::string text = std::string(19, 'x') + "\u4e2d" + std::string(19, 'y');
  EXPECT_EQ(pieces_of(PrefixTokenizer(), text, kTiny),
            (Strings{std::string(19, 'x'), "\u4e2d" + std::string(17, 'y'), "yy"}));
  const std::string no_utf8(45, '\x80');
  EXPECT_EQ(pieces_of(PrefixTokenizer(), no_utf8, kTiny)[0].size(), 20u);
}

TEST(PieceCutter, NeedsToSeeFarEnough) {
  PieceCutter cutter(ByteTokenizer(), kTiny);
  expect_error([&] { cutter.next("short", false); }, {"5 bytes"});
  expect_error([] { PieceCutter(ByteTokenizer(), {100, 50, 10}); }, {"100", "50"});
}

// The essential property: pieces give the tokens of the whole.
class RealTokenizers : public testing::TestWithParam<const char*> {};

TEST_P(RealTokenizers, PiecesGiveTheTokensOfTheWhole) {
  const auto tokenizer = open_tokenizer(source_folder() / "tests/fixtures/tokenizers" / GetParam());
  std::mt19937 random(7);
  const auto encoder = tokenizer->encoder();
  size_t cuts = 0;
  for (int round = 0; round < 60; ++round) {
    // Words between the runs ensure a border before `longest`.
    std::string text;
    while (text.size() < 3000) text += random_text(random, 30, round % 3 != 0) + " word\nword ";
    std::vector<int32_t> whole, pieces;
    encoder->encode(text, whole);
    for (const std::string& piece : pieces_of(*tokenizer, text, {100, 1000, 64})) {
      encoder->encode(piece, pieces);
      ++cuts;
    }
    ASSERT_EQ(pieces, whole) << "round " << round;
  }
  EXPECT_GT(cuts, 60u * 15u);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RealTokenizers,
                         testing::Values("gpt2.json", "llama3.json", "qwen2.json", "smollm2.json",
                                         "exact", "prefix"));

}  // namespace
}  // namespace quern
