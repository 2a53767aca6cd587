#include "io/json_place.h"

#include "base/error.h"
#include "io/json_file.h"

namespace quern {

bool JsonPlace::has(const char* key) const {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null();
}

std::string JsonPlace::where() const {
  return path.ends_with(": ") ? path.substr(0, path.size() - 2) : path;
}

JsonPlace JsonPlace::at(const char* key) const {
  if (!json.is_object()) refuse(cat("an object with ", key));
  QUERN_CHECK(has(key), where(), ": has no ", key);
  return {json[key], cat(path, path.ends_with(": ") ? "" : ".", key)};
}

JsonPlace JsonPlace::at(size_t i) const {
  return {json[i], cat(path, "[", i, "]")};
}

JsonPlace JsonPlace::object(const char* key) const {
  const JsonPlace member = at(key);
  if (!member.json.is_object()) member.refuse("an object");
  return {member.json, member.path + ": "};
}

std::vector<JsonPlace> JsonPlace::list() const {
  if (!json.is_array()) refuse("a list");
  std::vector<JsonPlace> entries;
  for (size_t i = 0; i < json.size(); ++i) entries.push_back(at(i));
  return entries;
}

void JsonPlace::refuse(const std::string& expected) const {
  std::string found = json.dump();
  if (found.size() > 80) found = found.substr(0, 80) + "...";
  fail(cat(where(), " is ", found, ", expected ", expected));
}

void JsonPlace::refuse(const char* key, const std::string& expected) const {
  at(key).refuse(expected);
}

const std::string& JsonPlace::text() const {
  if (!json.is_string()) refuse("a string");
  return json.get_ref<const std::string&>();
}

double JsonPlace::number() const {
  if (!json.is_number()) refuse("a number");
  return json.get<double>();
}

int64_t JsonPlace::count(int64_t least, int64_t most) const {
  const bool fits = json.is_number_unsigned() &&
                    json.get<uint64_t>() <= static_cast<uint64_t>(most) &&
                    json.get<int64_t>() >= least;
  if (fits) return json.get<int64_t>();
  refuse(most == INT64_MAX ? cat("a whole number of ", least, " or more")
                           : cat("a whole number from ", least, " to ", most));
}

uint64_t JsonPlace::unsigned_number() const {
  if (!json.is_number_unsigned()) refuse("a whole number from 0 to 2^64 - 1");
  return json.get<uint64_t>();
}

int32_t JsonPlace::id() const {
  const bool fits = json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{INT32_MAX};
  if (!fits) refuse("a token id from 0 to 2147483647");
  return json.get<int32_t>();
}

bool JsonPlace::boolean() const {
  if (!json.is_boolean()) refuse("true or false");
  return json.get<bool>();
}

bool JsonPlace::flag(const char* key, bool absent) const {
  return has(key) ? at(key).boolean() : absent;
}

void JsonPlace::only_false(const char* key, const std::string& why) const {
  if (flag(key)) refuse(key, "false: " + why);
}

JsonFile::JsonFile(const std::filesystem::path& path)
    : path_(path.string()), json_(read_sorted_json_object(path)) {}

}  // namespace quern
