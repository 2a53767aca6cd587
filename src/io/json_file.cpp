#include "io/json_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/mapped_file.h"

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

}  // namespace quern
