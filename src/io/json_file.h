// Reads JSON, with checks that nlohmann's parser lacks and messages without the library's words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// The object in the file, its members in the file's order. Throws naming the file when it is
// missing, not JSON or not an object, or when an object in it has a name twice.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);

// Parses `text`. Throws when an object has a name twice; nlohmann keeps the last. Errors begin with
// `place`: "file: header names 'x' twice".
nlohmann::json parse_distinct_json(std::string_view text, const std::string& place);

// Values nested deeper than this are refused: nlohmann's dump() and comparison recurse.
inline constexpr int kDeepestJson = 200;

// The reason of a parse error, "line 1, column 7: found '}', expected ...", from nlohmann's what().
std::string json_reason(std::string what);

// Typed access to a JSON value and its location, for errors that show both:
// "tokenizer.json: model.merges[3] is 7, expected a string".
// A null member counts as absent. Accessors throw on a missing value or a wrong type.
struct JsonPlace {
  const nlohmann::json& json;
  std::string path;  // ends with ": " if members follow without a dot (a file's root object)

  bool has(const char* key) const;
  JsonPlace at(const char* key) const;
  JsonPlace at(size_t i) const;
  JsonPlace object(const char* key) const;  // its members' paths are "path: key: member"
  std::vector<JsonPlace> list() const;
  std::string where() const;  // the path without a ": " at its end

  [[noreturn]] void refuse(const std::string& expected) const;
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

  const std::string& text() const;
  double number() const;
  int64_t count(int64_t least = 0, int64_t most = INT64_MAX) const;  // a whole number
  uint64_t unsigned_number() const;
  int32_t id() const;  // a token id
  bool boolean() const;
  bool flag(const char* key, bool absent = false) const;
  void only_false(const char* key, const std::string& why = "Quern does not compute this") const;
};

// The object in a file, as read_json_object, but sorted by name, for objects with many members:
// ordered_json searches linearly.
class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path);
  JsonPlace root() const { return {json_, path_ + ": "}; }

 private:
  std::string path_;
  nlohmann::json json_;
};

}  // namespace quern
