#include "data/prepare/json_text.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

using Kind = BadInput::Kind;

std::string text_of(const std::string& line) {
  std::string text = "left over";
  const auto bad = read_json_text(line, "text", text);
  EXPECT_FALSE(bad) << bad->what;
  return text;
}

void expect_bad(const std::string& line, Kind kind, int64_t column, const std::string& what) {
  std::string text;
  const auto bad = read_json_text(line, "text", text);
  ASSERT_TRUE(bad) << line;
  EXPECT_EQ(bad->kind, kind) << line;
  EXPECT_EQ(bad->column, column) << line << ": " << bad->what;
  EXPECT_NE(bad->what.find(what), std::string::npos) << bad->what;
}

TEST(JsonText, FilesAreKnownByName) {
  for (const char* name :
       {"a.jsonl", "b.ndjson", "c.txt.jsonl.gz", "d.jsonl.zst", "e.jsonl.zstd"}) {
    EXPECT_TRUE(is_named_json_lines(std::filesystem::path("x.txt") / name)) << name;
  }
  for (const char* name : {"a.txt", "b.json", "jsonl", "c.jsonl.txt", "d.gz"}) {
    EXPECT_FALSE(is_named_json_lines(std::filesystem::path("x.jsonl") / name)) << name;
  }
}

TEST(JsonText, FindsTheField) {
  EXPECT_EQ(text_of(R"({"text": "abc"})"), "abc");
  EXPECT_EQ(text_of(R"( {"id": 7, "meta": {"text": "no"}, "text": "yes", "l": ["text"]}  )"),
            "yes");
  EXPECT_EQ(text_of(R"({"text": ""})"), "");
  EXPECT_EQ(text_of(R"({"text": "a\nb\u00e9\ud83d\ude00\u0000"})"),
            std::string("a\nb\u00e9\U0001F600\0", 10));
  EXPECT_EQ(text_of("{\"text\": \"\u4e2d\"}\r"), "\u4e2d");
  EXPECT_EQ(text_of(R"({"text": "first", "text": "last"})"), "last");
  EXPECT_EQ(text_of(R"({"text": 1, "text": "last"})"), "last");
}

TEST(JsonText, MissingField) {
  expect_bad("{}", Kind::no_field, 1, "no field 'text'");
  expect_bad(R"({"Text": "x", "a": {"text": "x"}, "b": [{"text": "x"}]})", Kind::no_field, 1,
             "no field 'text'");
}

TEST(JsonText, FieldThatIsNoString) {
  expect_bad(R"({"text": null})", Kind::not_a_string, 1, "'text' is null");
  expect_bad(R"({"text": -7})", Kind::not_a_string, 1, "'text' is -7");
  expect_bad(R"({"text": 1.50})", Kind::not_a_string, 1, "'text' is 1.50");
  expect_bad(R"({"text": true})", Kind::not_a_string, 1, "'text' is true");
  expect_bad(R"({"text": ["x"]})", Kind::not_a_string, 1, "'text' is an array");
  expect_bad(R"({"text": {"text": "x"}})", Kind::not_a_string, 1, "'text' is an object");
  expect_bad(R"({"text": "x", "text": 7})", Kind::not_a_string, 1, "'text' is 7");
}

TEST(JsonText, BrokenJson) {
  expect_bad(R"({"text": "abc)", Kind::bad_json, 14, "is no JSON");
  expect_bad(R"({"text" "abc"})", Kind::bad_json, 13, "is no JSON");
  expect_bad(R"({"text": "abc"} x)", Kind::bad_json, 17, "is no JSON");
  expect_bad(R"({"text": "abc", })", Kind::bad_json, 17, "is no JSON");
  expect_bad(R"({"text": "\ud800"})", Kind::bad_json, 17, "is no JSON");
  expect_bad("plain text", Kind::bad_json, 1, "the line begins 'plain text'");
  expect_bad(R"(["text", "x"])", Kind::bad_json, 1, "an array, expected an object");
  expect_bad(R"("text")", Kind::bad_json, 1, "a string, expected an object");
  expect_bad(std::string("{\"text\": \"a\"}\0 {", 16), Kind::bad_json, 14, "this byte is 0");
  expect_bad(std::string("{\"text\": \"a\tb\"}"), Kind::bad_json, 12, "is no JSON");
}

TEST(JsonText, InvalidUtf8) {
  expect_bad("{\"text\": \"ab\xE4\x80\"}", Kind::bad_utf8, 13, "byte 0xE4");
}

TEST(JsonText, DeepNestingNeedsNoStack) {
  const std::string deep(1'000'000, '[');
  expect_bad("{\"a\": " + deep, Kind::bad_json, 1'000'007, "is no JSON");
  EXPECT_EQ(text_of("{\"a\": " + deep + std::string(deep.size(), ']') + ", \"text\": \"x\"}"), "x");
}

}  // namespace
}  // namespace quern
