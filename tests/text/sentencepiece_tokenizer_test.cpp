// The ids and texts of transformers and of the SentencePiece library (fixtures and their script in
// tests/fixtures/tokenizers, tests/interop/make_sentencepiece.py).
#include "text/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;
using Json = nlohmann::json;
namespace fs = std::filesystem;

const fs::path kFolder = testing_support::source_folder() / "tests/fixtures/tokenizers";

SentencePieceTokenizer open(const std::string& name) {
  return SentencePieceTokenizer(read_file(kFolder / name / "tokenizer.model"));
}

class SentencePiece : public ::testing::TestWithParam<const char*> {
 protected:
  SentencePieceTokenizer tokenizer_ = open(GetParam());
  Json vectors_ = Json::parse(read_file(kFolder / GetParam() / "vectors.json"));
};

TEST_P(SentencePiece, GivesTransformersIdsAndText) {
  ASSERT_GE(vectors_.size(), 36u);
  for (const Json& vector : vectors_) {
    const std::string text = vector["text"];
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer_.encode(text), ids) << text;
    if (!vector.contains("decoded")) continue;
    EXPECT_EQ(tokenizer_.decode(ids), vector["decoded"].get<std::string>()) << text;
  }
}

// The text that a token adds does not depend on how many tokens are decoded at once.
TEST_P(SentencePiece, TextGrowsTokenByToken) {
  for (const Json& vector : vectors_) {
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    std::string grown;
    for (size_t i = 0; i < std::min<size_t>(ids.size(), 64); ++i) {
      const std::string before = i == 0 ? "" : tokenizer_.decode(std::span(ids).subspan(i - 1, 1));
      const std::string both =
          tokenizer_.decode(std::span(ids).subspan(i == 0 ? 0 : i - 1, i == 0 ? 1 : 2));
      ASSERT_TRUE(both.starts_with(before));
      grown += both.substr(before.size());
      const std::string whole = tokenizer_.decode(std::span(ids).first(i + 1));
      if (i == 0 || !vector["text"].get<std::string>().starts_with(' ')) {
        EXPECT_EQ(grown, whole);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SentencePiece, ::testing::Values("exact", "prefix"));

TEST(SentencePieceTokenizer, BytesThatAreNoTextAreNotLost) {
  const SentencePieceTokenizer exact = open("exact"), prefix = open("prefix");
  for (const char* text : {"\xFF", "ok \xC3\x28 no", "\xE4\xBB", "\xED\xA0\x80 surrogate",
                           "\xF0\x9F\x98 cut \xF0\x9F\x98\x80",
                           "\xC0\xAF overlong \xF4\x90\x80\x80", "\x80\x81\x82"}) {
    EXPECT_EQ(exact.decode(exact.encode(text)), text);
    EXPECT_EQ(prefix.decode(prefix.encode(text)), text);
  }
  // No second space behind invalid UTF-8.
  const std::vector<int32_t> tokens = prefix.encode(
      "a\xFF"
      "b");
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(prefix.piece(tokens[0]), "\u2581a");
  EXPECT_EQ(prefix.piece(tokens[1]), "<0xFF>");
  EXPECT_EQ(prefix.piece(tokens[2]), "b");
}

// Quern encodes word by word with a cache; the library encodes the whole text.
TEST(SentencePieceTokenizer, AgreesWithTheLibraryOnAnyText) {
  const std::vector<std::string> parts = {
      " ",      "  ", "\n", "\t",     "the",    "a", "ing",
      "\u2581", "12", ".",  "\u00E9", "\u4eca", "'", std::string(70, 'x')};
  for (const char* name : {"exact", "prefix"}) {
    const SentencePieceTokenizer tokenizer = open(name);
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.Load((kFolder / name / "tokenizer.model").string()).ok());
    const auto encoder = tokenizer.encoder();
    uint32_t state = 7;
    for (int round = 0; round < 500; ++round) {
      std::string text;
      for (int i = 0; i < 30; ++i) {
        state = state * 1664525u + 1013904223u;
        text += parts[(state >> 16) % parts.size()];
      }
      std::vector<int32_t> tokens;
      encoder->encode(text, tokens);
      ASSERT_EQ(tokens, library.EncodeAsIds(text)) << name << ": " << text;
    }
  }
}

TEST(SentencePieceTokenizer, ThePrefixSpaceComesOncePerText) {
  const SentencePieceTokenizer once = open("prefix");
  EXPECT_TRUE(once.adds_prefix_space());
  EXPECT_FALSE(open("exact").adds_prefix_space());
  TokenizerSettings settings;
  settings.legacy = true;
  const SentencePieceTokenizer each(read_file(kFolder / "prefix/tokenizer.model"), settings);
  const auto pieces = [](const SentencePieceTokenizer& tokenizer) {
    std::string all;
    for (const int32_t id : tokenizer.encode("a</s>b")) all += tokenizer.piece(id) + "|";
    return all;
  };
  EXPECT_EQ(pieces(once), "\u2581a|</s>|b|");
  EXPECT_EQ(pieces(each), "\u2581a|</s>|\u2581b|");
}

TEST(SentencePieceTokenizer, EndsAndAddedTokens) {
  const std::string model = read_file(kFolder / "exact/tokenizer.model");
  TokenizerSettings settings;
  settings.add_begin = true;
  const SentencePieceTokenizer own(model, settings);
  EXPECT_EQ(own.begin_token(), 1);
  EXPECT_EQ(own.end_token(), 2);
  EXPECT_EQ(own.vocabulary(), 700);
  EXPECT_EQ(own.decode(std::vector<int32_t>{1, own.find("a"), 0, 2}), "a");
  settings = {};
  settings.added = {{700, "<|im_end|>", true}, {701, "<tool>", false}};
  settings.end = "<|im_end|>";
  const SentencePieceTokenizer more(model, settings);
  EXPECT_EQ(more.vocabulary(), 702);
  EXPECT_EQ(more.end_token(), 700);
  EXPECT_EQ(more.begin_token(), std::nullopt);
  EXPECT_EQ(more.encode("<|im_end|><tool>"), (std::vector<int32_t>{700, 701}));
  EXPECT_EQ(more.decode(std::vector<int32_t>{700, 701}), "<tool>");
  settings.end = "<|none|>";
  expect_error([&] { SentencePieceTokenizer(model, settings); },
               {"eos_token is '<|none|>'", "vocabulary"});
}

TEST(SentencePieceTokenizer, Refusals) {
  const SentencePieceTokenizer tokenizer = open("exact");
  expect_error(
      [&] {
        tokenizer.decode(std::vector<int32_t>{5, 700});
      },
      {"token 1 is 700", "expected 0 to 699"});
  const std::string model = read_file(kFolder / "exact/tokenizer.model");
  for (const std::string& bad :
       {std::string(), std::string("no model at all"), model.substr(0, 5000)}) {
    expect_error([&] { SentencePieceTokenizer{bad}; }, {"SentencePiece"});
  }
}

}  // namespace
}  // namespace quern
