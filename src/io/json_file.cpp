#include "io/json_file.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "io/json_guard.h"
#include "io/mapped_file.h"

namespace quern {

namespace {

// Throws at a name that an object has twice. (nlohmann's parser callback would do, but parsing with
// one takes quadratic time for an object of objects.)
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
    return true;
  }
  bool key(string_t& name) override {
    QUERN_CHECK(names_.back().insert(name).second, place_, " names '", name, "' twice");
    return true;
  }
  bool end_object() override {
    names_.pop_back();
    return true;
  }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;  // the parser reports it
  }

 private:
  const std::string& place_;
  std::vector<std::unordered_set<std::string>> names_;  // of the open objects
};

template <class Json>
Json parse_distinct(std::string_view text, const std::string& place) {
  check_json_text(text, place);
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
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  Json json = parse_distinct<Json>(text, path.string() + ":");
  QUERN_CHECK(json.is_object(), path.string(), ": holds a JSON ", json.type_name(),
              ", expected an object");
  return json;
}

}  // namespace

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  return read_object<nlohmann::ordered_json>(path);
}

nlohmann::json read_sorted_json_object(const std::filesystem::path& path) {
  return read_object<nlohmann::json>(path);
}

nlohmann::json parse_distinct_json(std::string_view text, const std::string& place) {
  return parse_distinct<nlohmann::json>(text, place);
}

}  // namespace quern
