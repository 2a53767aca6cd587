#include "text/sentencepiece_trainer.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "text/sentencepiece_tokenizer.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

// Uniformly drawn words of three letters: about 4,000 different ones, some often.
std::string make_text(size_t bytes) {
  std::string text;
  uint32_t state = 1;
  while (text.size() < bytes) {
    for (int i = 0; i < 3; ++i) {
      state = state * 1664525u + 1013904223u;
      text += static_cast<char>('a' + (state >> 24) % 16);
    }
    text += (state >> 16) % 11 == 0 ? '\n' : ' ';
  }
  return text;
}

class SentencePieceTrainer : public ::testing::Test {
 protected:
  SentencePieceTrainer() { options_.vocabulary = 400; }

  SentencePieceResult train(const std::string& text) {
    const fs::path file = write_file(folder_ / "text.txt", text);
    return train_sentencepiece(std::span(&file, 1), options_);
  }
  static SentencePieceTokenizer open(const SentencePieceResult& result) {
    return SentencePieceTokenizer(result.model);
  }

  TemporaryFolder folder_;
  SentencePieceTraining options_;
};

TEST_F(SentencePieceTrainer, MakesLlamasNumbersAndAllBytes) {
  const SentencePieceTokenizer tokenizer = open(train(make_text(50'000)));
  EXPECT_EQ(tokenizer.vocabulary(), 400);
  EXPECT_EQ(tokenizer.find("<unk>"), 0);
  EXPECT_EQ(tokenizer.find("<s>"), 1);
  EXPECT_EQ(tokenizer.find("</s>"), 2);
  EXPECT_EQ(tokenizer.end_token(), 2);
  EXPECT_EQ(tokenizer.begin_token(), std::nullopt);
  EXPECT_TRUE(tokenizer.has_byte_fallback());
  EXPECT_FALSE(tokenizer.adds_prefix_space());
}

// Also for unseen characters, control characters and invalid UTF-8.
TEST_F(SentencePieceTrainer, DecodingIsExact) {
  const SentencePieceTokenizer tokenizer = open(train(make_text(50'000)));
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  for (const std::string& text :
       {std::string("abc def"), std::string("  a  b   "), std::string("\n\n\tx\r\n"), bytes,
        std::string("caf\xC3\xA9 \xE4\xBB\x8A\xE5\xA4\xA9 \xF0\x9F\x98\x80"),
        std::string("\xFF"
                    "a \xE4\xBB"),
        std::string("1234"), std::string()}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(SentencePieceTrainer, TheSameTextGivesTheSameModelOnAnyNumberOfThreads) {
  const std::string text = make_text(200'000);
  options_.sample_bytes = 60'000;
  const SentencePieceResult one = train(text);
  options_.threads = 3;
  const SentencePieceResult three = train(text);
  EXPECT_TRUE(one.model == three.model);
  // Lines have 44 bytes on average, so the drawn bytes deviate by about 1.5 %.
  EXPECT_NEAR(static_cast<double>(one.used_bytes), 60'000, 6'000);
  EXPECT_GT(one.text_bytes, 190'000);
  options_.sample_bytes = 0;
  EXPECT_TRUE(train(text).model != one.model);
}

TEST_F(SentencePieceTrainer, DigitsAreSplitUnlessAskedOtherwise) {
  options_.vocabulary = 300;
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "year 1984 and 1984\n" + make_text(30);
  EXPECT_EQ(open(train(text))
                .find("\u2581"
                      "1984"),
            -1);
  options_.split_digits = false;
  EXPECT_GE(open(train(text))
                .find("\u2581"
                      "1984"),
            0);
}

TEST_F(SentencePieceTrainer, SpecialTokensStandForNoText) {
  options_.special = {"<|user|>", "<|a,\"b|>"};
  const SentencePieceTokenizer tokenizer = open(train(make_text(50'000)));
  EXPECT_EQ(tokenizer.find("<|user|>"), 3);
  EXPECT_EQ(tokenizer.find("<|a,\"b|>"), 4);
  const std::vector<int32_t> tokens = tokenizer.encode("<|user|>abc");
  EXPECT_EQ(tokens[0], 3);
  EXPECT_EQ(tokenizer.decode(tokens), "abc");
}

// SentencePiece ignores <s> and </s> here, and its errors for the others name no token.
TEST_F(SentencePieceTrainer, RefusesReservedAndRepeatedSpecialTokens) {
  for (const char* token : {"<unk>", "<s>", "</s>", "<0x0A>", "<0xff>"}) {
    options_.special = {"<|user|>", token};
    expect_error([&] { train(make_text(5'000)); },
                 {cat("special has '", token, "', expected tokens other than <unk>, <s>, </s>")});
  }
  options_.special = {"<|a|>", "<|b|>", "<|a|>"};
  expect_error([&] { train(make_text(5'000)); }, {"special has '<|a|>' twice, expected distinct"});
  options_.special = {"<|a|>", "<\xff>"};
  expect_error([&] { train(make_text(5'000)); }, {"special has '<\uFFFD>', expected UTF-8"});
  options_.special = {""};
  expect_error([&] { train(make_text(5'000)); }, {"special has an empty entry"});
  const fs::path missing = folder_ / "none.txt";
  options_.special = {"</s>"};
  expect_error([&] { train_sentencepiece(std::span(&missing, 1), options_); },
               {"special has '</s>'"});  // before it reads a file
  for (const char* token : {"<pad>", "<S>", "<0xG0>", "<0x0A"}) {
    EXPECT_EQ(special_error(std::vector<std::string>{token}), "") << token;
  }
}

TEST_F(SentencePieceTrainer, RefusesWhatCannotBeLearnt) {
  options_.vocabulary = 100'000;
  expect_error([&] { train(make_text(5'000)); },
               {"too small for a vocabulary of 100000", "at most"});
  options_.vocabulary = 262;
  expect_error([&] { train(make_text(5'000)); },
               {"a vocabulary of 262 tokens is too small", "at least 27"});
  for (const int64_t few : {1, 2}) {
    options_.vocabulary = few;
    expect_error([&] { train(make_text(5'000)); }, {"tokens is too small", "at least 260"});
  }
  options_.vocabulary = 400;
  expect_error([&] { train(""); }, {"there is no text", "text.txt"});
  expect_error([&] { train("\n\r\n\xFF"); }, {"there is no text"});
  const fs::path missing = folder_ / "none.txt";
  expect_error([&] { train_sentencepiece(std::span(&missing, 1), options_); }, {"none.txt"});
}

}  // namespace
}  // namespace quern
