#include "data/text_stream.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quern {
namespace {

// Tokens 0 to 255 are bytes; 256 has no text. Like SentencePiece, drops a space at the start of a
// text.
class ByteTokens : public Tokenizer {
 public:
  std::unique_ptr<TokenEncoder> encoder() const override { return nullptr; }
  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token < 256) text += static_cast<char>(token);
    }
    return text.starts_with(' ') ? text.substr(1) : text;
  }
  int64_t vocabulary() const override { return 257; }
  std::optional<int32_t> end_token() const override { return 256; }
  std::optional<int32_t> begin_token() const override { return {}; }
  std::string hash() const override { return "none"; }
  std::string kind() const override { return "bytes"; }
};

const ByteTokens kTokens;

// The output of each token of `bytes`, separated by "/", and the rest after "!".
std::string pieces(TextStream& stream, std::string_view bytes) {
  std::string all;
  for (const char c : bytes) all += stream.push(static_cast<uint8_t>(c)) + "/";
  return all + "!" + stream.finish();
}

std::string pieces(std::string_view bytes, std::vector<std::string> stops = {}) {
  TextStream stream(kTokens, {'x'}, std::move(stops));
  return pieces(stream, bytes);
}

TEST(TextStream, GivesWholeCharactersOnly) {
  EXPECT_EQ(pieces("ab"), "a/b/!");
  EXPECT_EQ(pieces("\xc3\xa9"), "/\xc3\xa9/!");
  EXPECT_EQ(pieces("a\xf0\x9f\x98\x80"), "a////\xf0\x9f\x98\x80/!");
}

TEST(TextStream, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(pieces("\x80z"), "\uFFFD/z/!");
  EXPECT_EQ(pieces("\xe4\xbdz"), "//\uFFFDz/!");
  EXPECT_EQ(pieces("\xe4\xbd"), "//!\uFFFD");  // truncated at the end
}

TEST(TextStream, ASpaceIsWhatItIsAfterAPrompt) {
  EXPECT_EQ(pieces(" a b"), " /a/ /b/!");
  TextStream first(kTokens, {});
  EXPECT_EQ(pieces(first, " a b"), "/a/ /b/!");
}

TEST(TextStream, SpecialTokensStandForNothing) {
  TextStream stream(kTokens, {256});
  EXPECT_EQ(stream.push(' '), "");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.push('a'), "a");
}

// The stream gives the text of all tokens decoded at once, wherever special tokens lie.
TEST(TextStream, ASpaceBehindASpecialTokenIsKept) {
  const std::vector<int32_t> tokens = {256, ' ', 'a', 256, ' ', 'b', ' ', 256, 256, ' ', 'c'};
  for (size_t before = 0; before <= tokens.size(); ++before) {
    const auto middle = tokens.begin() + static_cast<std::ptrdiff_t>(before);
    TextStream stream(kTokens, {tokens.begin(), middle});
    std::string text = kTokens.decode({tokens.begin(), middle});
    for (auto token = middle; token != tokens.end(); ++token) text += stream.push(*token);
    EXPECT_EQ(text, "a b  c") << "after a prompt of " << before;
  }
}

TEST(TextStream, TokensBeyondTheVocabularyAreReplaced) {
  TextStream stream(kTokens, {'x'});
  EXPECT_EQ(stream.push(static_cast<int32_t>(kTokens.vocabulary())), "\uFFFD");
  EXPECT_EQ(stream.push('a'), "a");
}

TEST(TextStream, NothingOfAStopStringIsGiven) {
  EXPECT_EQ(pieces("one\n\ntwo", {"\n\n"}), "o/n/e//////!");
}

TEST(TextStream, WhatOnlyBeganLikeAStopStringIsGiven) {
  EXPECT_EQ(pieces("abac", {"abad"}), "///abac/!");
  EXPECT_EQ(pieces("aab", {"abc"}), "/a//!ab");
  EXPECT_EQ(pieces("xyz", {"zz"}), "x/y//!z");
}

TEST(TextStream, TheStopStringThatBeginsFirstCounts) {
  TextStream stream(kTokens, {'x'}, {"cd", "bcd"});
  EXPECT_EQ(pieces(stream, "abcde"), "a/////!");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, AStopStringMayLieAcrossCharacters) {
  TextStream stream(kTokens, {}, {"\u00e9\u4eca"});
  EXPECT_EQ(pieces(stream, "a\u00e9\u00e9\u4ecab"), "a///\u00e9//////!");
}

TEST(StopStrings, AreSeparatedByBars) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(split_stop_strings(""), Strings{});
  EXPECT_EQ(split_stop_strings("</s>"), Strings{"</s>"});
  EXPECT_EQ(split_stop_strings(R"(a|b c)"), (Strings{"a", "b c"}));
  EXPECT_EQ(split_stop_strings(R"(a\|b|\n\n|\t|\\n)"), (Strings{"a|b", "\n\n", "\t", "\\n"}));
  EXPECT_EQ(split_stop_strings(R"(\end{x}|\d|\)"), (Strings{"\\end{x}", "\\d", "\\"}));
  EXPECT_THROW(split_stop_strings("a|"), Error);
  EXPECT_THROW(split_stop_strings("|"), Error);
}

TEST(TextStream, UnescapesAPrompt) {
  EXPECT_EQ(unescape(R"(a\n\tb\\n)"), "a\n\tb\\n");
  EXPECT_EQ(unescape(R"(\d+ \)"), R"(\d+ \)");
  EXPECT_EQ(unescape(""), "");
}

}  // namespace
}  // namespace quern
