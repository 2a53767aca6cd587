// Reads JSON files.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace quern {

// The object in the file. Throws naming the file when it is missing, not JSON or not an object, or
// when an object in it has a name twice.
// Members keep the file's order.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);
// The same, sorted by name, for objects with many members: ordered_json searches linearly.
nlohmann::json read_sorted_json_object(const std::filesystem::path& path);

// Parses `text`. Throws when an object has a name twice; nlohmann keeps the last. Errors begin with
// `place`: "file: header names 'x' twice".
nlohmann::json parse_distinct_json(std::string_view text, const std::string& place);

}  // namespace quern
