#include "io/json_file.h"

#include <unordered_set>

#include "base/error.h"
#include "io/mapped_file.h"

namespace quern {

namespace {

// Throws at a name that an object has twice, and at values nested too deep. (nlohmann's parser
// callback would do, but parsing with one takes quadratic time for an object of objects.)
class DistinctNames : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit DistinctNames(const std::string& place) : place_(place) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    names_.emplace_back();
    return open();
  }
  bool key(string_t& name) override {
    QUERN_CHECK(names_.back().insert(name).second, place_, " names '", name, "' twice");
    return true;
  }
  bool end_object() override {
    names_.pop_back();
    return close();
  }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;  // the parser reports it
  }

 private:
  bool open() {
    QUERN_CHECK(++depth_ <= kDeepestJson, place_, " nests values ", depth_,
                " levels deep, expected at most ", kDeepestJson);
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& place_;
  int depth_ = 0;
  std::vector<std::unordered_set<std::string>> names_;  // of the open objects
};

template <class Json>
Json parse_distinct(std::string_view text, const std::string& place) {
  const size_t zero = text.find('\0');  // nlohmann's parser takes it as the end
  QUERN_CHECK(zero == std::string_view::npos, place, " byte ", zero, " is 0, expected JSON text");
  DistinctNames names(place);
  nlohmann::json::sax_parse(text, &names);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    fail(cat(place, " is not valid JSON: ", json_reason(error.what())));
  }
}

template <class Json>
Json read_object(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path);
  Json json = parse_distinct<Json>(file.text(), path.string() + ":");
  QUERN_CHECK(json.is_object(), path.string(), ": holds a JSON ", json.type_name(),
              ", expected an object");
  return json;
}

}  // namespace

std::string json_reason(std::string what) {
  const auto replace = [&](std::string_view before, std::string_view after) {
    const size_t at = what.find(before);
    if (at != std::string::npos) what.replace(at, before.size(), after);
  };
  if (what.starts_with("[json.exception.")) what.erase(0, what.find("] ") + 2);
  std::string read;  // the text of the token that is wrong
  const size_t last = what.find("; last read: "), expected = what.rfind("; expected ");
  if (last != std::string::npos) {
    const bool more = expected != std::string::npos && expected > last;
    read = what.substr(last + 13, more ? expected - last - 13 : std::string::npos);
    what.erase(last, more ? expected - last : std::string::npos);
  }
  replace("parse error at ", "");
  const size_t syntax = what.find("syntax error while parsing "), dash = what.find(" - ");
  if (syntax != std::string::npos && dash != std::string::npos && dash > syntax) {
    what.erase(syntax, dash + 3 - syntax);
  }
  replace("unexpected ", "found ");
  replace("; expected ", ", expected ");
  constexpr size_t kLongestQuote = 40;  // the text may be as long as the file
  if (!read.empty() && read.size() <= kLongestQuote)
    replace("invalid literal", cat("found ", read));
  return what;
}

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  return read_object<nlohmann::ordered_json>(path);
}

nlohmann::json parse_distinct_json(std::string_view text, const std::string& place) {
  return parse_distinct<nlohmann::json>(text, place);
}

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
    : path_(path.string()), json_(read_object<nlohmann::json>(path)) {}

}  // namespace quern
