#include "io/json_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;
using Json = nlohmann::json;

// Runs `read` on a value as member "k" of the file f, and expects it to be refused with `message`.
template <class Read>
void expect_refused(const std::string& value, const std::string& message, const Read& read) {
  const Json json{{"k", Json::parse(value)}};
  expect_error([&] { read(JsonPlace{json, "f: "}.at("k")); }, {message});
}

TEST(JsonPlace, NumbersAreTakenUpToTheirBounds) {
  const auto count = [](const JsonPlace& place) { return place.count(2, 5); };
  for (const char* n : {"2", "5"}) EXPECT_EQ(count({Json::parse(n), "n"}), std::stoll(n));
  for (const char* n : {"-1", "1", "6", "2.0"}) {
    expect_refused(n, cat("f: k is ", n, ", expected a whole number from 2 to 5"), count);
  }
  const auto any = [](const JsonPlace& place) { return place.count(); };
  EXPECT_EQ(any({Json::parse("9223372036854775807"), "n"}), INT64_MAX);
  expect_refused("9223372036854775808",
                 "f: k is 9223372036854775808, expected a whole number of 0 or more", any);

  const auto id = [](const JsonPlace& place) { return place.id(); };
  for (const char* n : {"0", "2147483647"}) EXPECT_EQ(id({Json::parse(n), "n"}), std::stoll(n));
  for (const char* n : {"-1", "2147483648"}) {
    expect_refused(n, cat("f: k is ", n, ", expected a token id from 0 to 2147483647"), id);
  }
  const auto bits = [](const JsonPlace& place) { return place.unsigned_number(); };
  EXPECT_EQ(bits({Json::parse("18446744073709551615"), "n"}), UINT64_MAX);
  expect_refused("-1", "f: k is -1, expected a whole number from 0 to 2^64 - 1", bits);
}

TEST(JsonPlace, ALongValueIsCutInItsMessage) {
  const auto number = [](const JsonPlace& place) { place.number(); };
  const std::string longest = std::string(78, 'x');  // 80 characters with its quotes
  expect_refused('"' + longest + '"', "f: k is \"" + longest + "\", expected a number", number);
  expect_refused('"' + longest + "y\"", "f: k is \"" + longest + "y..., expected a number", number);
}

TEST(JsonPlace, PathsNameMembersAndEntries) {
  const Json json = Json::parse(R"({"a": {"b": [true, [7], null]}, "none": null})");
  const JsonPlace root{json, "f: "}, a = root.object("a");
  EXPECT_EQ(root.where(), "f");
  EXPECT_EQ(a.path, "f: a: ");
  EXPECT_EQ(root.at("a").at("b").path, "f: a.b");
  const std::vector<JsonPlace> entries = a.at("b").list();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_TRUE(entries[0].boolean());
  EXPECT_EQ(entries[1].at(size_t{0}).path, "f: a: b[1][0]");
  EXPECT_EQ(entries[1].at(size_t{0}).count(), 7);
  EXPECT_FALSE(root.has("none"));
  EXPECT_TRUE(root.flag("none", true));
  EXPECT_FALSE(root.flag("other"));
  expect_error([&] { root.at("none"); }, {"f: has no none"});
  expect_error([&] { root.at("a").at("b").at("c"); },
               {"f: a.b is [true,[7],null], expected an object with c"});
  expect_error([&] { entries[0].list(); }, {"f: a: b[0] is true, expected a list"});
  expect_error([&] { a.object("b"); }, {"f: a: b is [true,[7],null], expected an object"});
  expect_error([&] { entries[0].text(); }, {"f: a: b[0] is true, expected a string"});
}

TEST(JsonPlace, OnlyFalseGivesItsReason) {
  const Json json = Json::parse(R"({"on": true, "off": false, "seven": 7})");
  const JsonPlace root{json, "f: "};
  root.only_false("off");
  root.only_false("absent");
  expect_error([&] { root.only_false("on", "too slow"); },
               {"f: on is true, expected false: too slow"});
  expect_error([&] { root.only_false("seven"); }, {"f: seven is 7, expected true or false"});
}

}  // namespace
}  // namespace quern
