#include "io/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace quern {
namespace {

TEST(Utf8, TheValidPrefixEndsBeforeTheFirstBadByte) {
  const std::string good = "plain ascii text, \u00e9\u4eca\U0001f600 and more of it";
  EXPECT_EQ(valid_utf8_prefix(good), good.size());
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
  for (const char* bad :
       {"\x80", "\xc1\xbf", "\xc3(", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe4\xbb", "\xf0\x9f\x98"}) {
    EXPECT_EQ(valid_utf8_prefix(good + bad), good.size()) << testing::PrintToString(bad);
  }
  // The limits of each length.
  for (const char* edge : {"\x7f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff",
                           "\U00010000", "\U0010ffff"}) {
    EXPECT_EQ(valid_utf8_prefix(edge), std::string(edge).size());
  }
}

// Bytes behind the end of a text do not complete its last character.
TEST(Utf8, ATextWithinATextEndsWhereItEnds) {
  for (const std::string character : {"\u00e9", "\u4eca", "\U0001f600"}) {
    const std::string text = "ab" + character + character;
    for (size_t n = 1; n < character.size(); ++n) {
      const std::string_view part = std::string_view(text).substr(0, 2 + n);
      EXPECT_EQ(valid_utf8_prefix(part), 2u);
      EXPECT_EQ(unfinished_utf8_suffix(part), n);
      EXPECT_EQ(replace_invalid_utf8(part), "ab\uFFFD");
      EXPECT_EQ(printable_utf8(part), "ab\uFFFD");
    }
    EXPECT_EQ(valid_utf8_prefix(std::string_view(text).substr(0, 2 + character.size())),
              2 + character.size());
  }
  const std::string space = "\u2003x\u2003";
  EXPECT_EQ(space_prefix(std::string_view(space).substr(0, 2)), 0u);
  EXPECT_EQ(space_prefix(std::string_view(space).substr(0, 3)), 3u);
  EXPECT_EQ(space_suffix(std::string_view(space).substr(5)), 0u);
  EXPECT_EQ(space_suffix(std::string_view(space).substr(4)), 3u);
}

TEST(Utf8, AnUnfinishedCharacterIsToldFromABrokenOne) {
  const std::string emoji = "\U0001f600";
  for (size_t n = 1; n < 4; ++n) {
    EXPECT_EQ(unfinished_utf8_suffix("ab" + emoji.substr(0, n)), n);
    EXPECT_EQ(unfinished_utf8_suffix(emoji.substr(0, n)), n);
  }
  EXPECT_EQ(unfinished_utf8_suffix("ab" + emoji), 0u);
  EXPECT_EQ(unfinished_utf8_suffix(""), 0u);
  EXPECT_EQ(unfinished_utf8_suffix("a\xc3"), 1u);
  EXPECT_EQ(unfinished_utf8_suffix("\xe4\xbb"), 2u);
  EXPECT_EQ(unfinished_utf8_suffix("\x80\x80\x80"), 0u);  // continues nothing
  EXPECT_EQ(unfinished_utf8_suffix("a\xff"), 0u);
  EXPECT_EQ(unfinished_utf8_suffix("a\xed\xa0"), 0u);  // a surrogate: never valid
}

// The expected texts are those of Python's bytes.decode(errors="replace").
TEST(Utf8, WhatIsNoUtf8IsReplacedAsTheUnicodeStandardRecommends) {
  const std::pair<const char*, const char*> cases[] = {
      {"plain \xc3\xa9", "plain \xc3\xa9"},
      {"a\x80"
       "b",
       "a\xef\xbf\xbd"
       "b"},
      {"\xe4\xbd", "\xef\xbf\xbd"},
      {"\xe4\xbd"
       "A",
       "\xef\xbf\xbd"
       "A"},
      {"\xe4"
       "A",
       "\xef\xbf\xbd"
       "A"},
      {"\xf0\x9f\x98(", "\xef\xbf\xbd("},
      {"\xf0\x9f\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xff\xfe\xc3", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xc1\xbf", "\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xe0\x9f\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"x\xf0\x9f\x98\x80y\xe2\x82", "x\xf0\x9f\x98\x80y\xef\xbf\xbd"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(replace_invalid_utf8(bytes), text) << testing::PrintToString(bytes);
  }
  EXPECT_EQ(replace_invalid_utf8(""), "");
}

TEST(Utf8, ATerminalIsNotCommanded) {
  using namespace std::string_literals;
  EXPECT_EQ(printable_utf8("h\u00e9\tllo\r\n"), "h\u00e9\tllo\n");
  EXPECT_EQ(printable_utf8("a\0b\033[2J\177"s), "a\uFFFDb\uFFFD[2J\uFFFD");
  EXPECT_EQ(printable_utf8("\xC2\x9B\xC2\xA0"), "\uFFFD\u00a0") << "U+009B begins a command";
  EXPECT_EQ(printable_utf8("\x9B\xC2"), "\uFFFD\uFFFD") << "nor does a broken byte";
}

TEST(Utf8, ControlCharactersAndNothingAreNoSpaces) {
  for (const char* text : {"", "\x01", "\x1F", "a"}) {
    EXPECT_EQ(space_prefix(text), 0u);
    EXPECT_EQ(space_suffix(text), 0u);
  }
  EXPECT_EQ(space_suffix("a\r"), 1u);
}

}  // namespace
}  // namespace quern
