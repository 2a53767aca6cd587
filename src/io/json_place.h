// A value of a JSON file and where it is, for errors that say both:
// "tokenizer.json: model.merges[3] is 7, expected a string". The one reader of JSON by type.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace quern {

// Every member that is null counts as absent. Everything that does not find what it names throws.
struct JsonPlace {
  const nlohmann::json& json;
  std::string path;  // ends with ": " where members follow without a dot, as of a file's object

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
  int32_t id() const;                                                // a token's
  bool flag(const char* key, bool absent = false) const;
  void only_false(const char* key, const std::string& why = "Quern does not compute this") const;
};

// The object in a file. Throws naming the file when it is missing, not JSON or not an object.
class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path);
  JsonPlace root() const { return {json_, path_ + ": "}; }

 private:
  std::string path_;
  nlohmann::json json_;
};

}  // namespace quern
