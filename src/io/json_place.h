// A value of a JSON file and where it is, for errors that say both:
// "tokenizer.json: model.merges[3] is 7, expected a string". For the sources of this folder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"

namespace quern {

struct JsonPlace {
  const nlohmann::json& json;
  std::string path;

  bool has(const char* key) const { return json.contains(key) && !json[key].is_null(); }

  JsonPlace at(const char* key) const {
    const std::string here = path.ends_with(": ") ? path.substr(0, path.size() - 2) : path;
    QUERN_CHECK(json.is_object() && has(key), here, ": has no ", key);
    return {json[key], cat(path, path.ends_with(": ") ? "" : ".", key)};
  }
  JsonPlace at(size_t i) const { return {json[i], cat(path, "[", i, "]")}; }

  [[noreturn]] void refuse(const std::string& expected) const {
    std::string found = json.dump();
    if (found.size() > 80) found = found.substr(0, 80) + "...";
    fail(cat(path, " is ", found, ", expected ", expected));
  }

  const std::string& text() const {
    if (!json.is_string()) refuse("a string");
    return json.get_ref<const std::string&>();
  }
  int32_t id() const {
    const bool fits = json.is_number_unsigned() && json.get<uint64_t>() < uint64_t{1} << 31;
    if (!fits) refuse("a token's number from 0 to 2147483647");
    return json.get<int32_t>();
  }
  bool flag(const char* key, bool absent = false) const {
    if (!has(key)) return absent;
    if (!json[key].is_boolean()) at(key).refuse("true or false");
    return json[key].get<bool>();
  }
  std::vector<JsonPlace> list() const {
    if (!json.is_array()) refuse("a list");
    std::vector<JsonPlace> entries;
    for (size_t i = 0; i < json.size(); ++i) entries.push_back(at(i));
    return entries;
  }
  void only_false(const char* key) const {
    if (flag(key)) at(key).refuse("false: Quern does not compute this");
  }
};

}  // namespace quern
