#include "io/json_file.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "io/mapped_file.h"

namespace quern {

namespace {

template <class Json>
Json read_object(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::open(path);
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  try {
    auto json = Json::parse(text, text + file.bytes().size());
    QUERN_CHECK(json.is_object(), path.string(), ": is not a JSON object");
    return json;
  } catch (const nlohmann::json::exception& error) {
    fail(cat(path.string(), ": is not valid JSON: ", error.what()));
  }
}

}  // namespace

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  return read_object<nlohmann::ordered_json>(path);
}

nlohmann::json read_sorted_json_object(const std::filesystem::path& path) {
  return read_object<nlohmann::json>(path);
}

nlohmann::json parse_distinct_json(std::string_view text, int depth, const std::string& place,
                                   const char* names) {
  std::unordered_set<std::string> seen;
  const auto refuse_duplicates = [&](int at, nlohmann::json::parse_event_t event,
                                     nlohmann::json& parsed) {
    if (at == depth && event == nlohmann::json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      QUERN_CHECK(seen.insert(name).second, place, " ", names, " '", name, "' twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, refuse_duplicates);
  } catch (const nlohmann::json::exception& error) {
    fail(cat(place, " is not valid JSON: ", error.what()));
  }
}

}  // namespace quern
