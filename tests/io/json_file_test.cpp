
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/json_file.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

void expect_refused(const std::string& text, const std::string& message) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "x.json", text);
  expect_error([&] { read_json_object(path); }, {path.string() + ": " + message});
  expect_error([&] { JsonFile{path}; }, {path.string() + ": " + message});
}

std::string nested(int depth) {
  const auto size = static_cast<size_t>(depth);
  return std::string(size, '[') + std::string(size, ']');
}

TEST(JsonGuard, AZeroByteIsNoEnd) {
  using namespace std::string_literals;
  expect_refused("\0{}"s, "byte 0 is 0, expected JSON text");
  expect_refused("{\"a\": \0 1}"s, "byte 6 is 0");
  expect_refused("{\"a\": 1}\0 garbage {"s, "byte 8 is 0");
  expect_refused("{\"a\0b\": 1}"s, "byte 3 is 0");
}

TEST(JsonGuard, NestingIsBounded) {
  const TemporaryFolder folder;
  const auto good =
      write_file(folder / "a", R"({"\"[[[": "]]{\\", "x": )" + nested(kDeepestJson - 1) + "}");
  EXPECT_EQ(read_json_object(good).size(), 2u);
  expect_refused("{\"x\":" + nested(kDeepestJson) + "}",
                 "nests values 201 levels deep, expected at most 200");
  expect_refused("{\"x\":" + nested(100'000) + "}", "nests values 201 levels deep");
}

TEST(JsonFile, ANameTwiceIsRefusedInEveryObject) {
  expect_refused(R"({"a": 1, "b": 2, "a": 3})", "names 'a' twice");
  expect_refused(R"({"a": [{"b": {"c": 1, "d": {"c": 2}, "c": 3}}]})", "names 'c' twice");
  const TemporaryFolder folder;
  const auto good =
      write_file(folder / "a", R"({"a": {"a": {"a": 1}, "b": 1}, "b": [{"a": 1}, {"a": 2}]})");
  EXPECT_EQ(read_json_object(good)["b"][1]["a"], 2);
}

TEST(JsonFile, SyntaxErrorsAreInPlainWords) {
  expect_refused("{\"a\":\n\n x}", "is not valid JSON: line 3, column 2: found '\"a\":");
  const TemporaryFolder folder;
  const auto path = write_file(folder / "x", "{\"a\": \"" + std::string(10'000, 'b'));
  try {
    read_json_object(path);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
    EXPECT_LT(message.size(), 300u);
  }
}

TEST(JsonReason, OtherTextStays) {
  EXPECT_EQ(json_reason("out of memory"), "out of memory");
  for (const char* what :
       {"syntax error while parsing value", "a - syntax error while parsing b"}) {
    EXPECT_EQ(json_reason(what), what);
  }
}

}  // namespace
}  // namespace quern
