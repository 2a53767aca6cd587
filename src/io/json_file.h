// Reads JSON files.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace quern {

// The object in the file. Throws naming the file when it is missing, not JSON or not an object.
// Members keep the file's order.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);
// The same, sorted by name, for objects with many members: ordered_json searches linearly.
nlohmann::json read_sorted_json_object(const std::filesystem::path& path);

// Parses `text`. Throws when a name occurs twice at `depth` (1: members of the value itself);
// nlohmann keeps the last. Errors begin with `place`: "file: header names 'x' twice".
nlohmann::json parse_distinct_json(std::string_view text, int depth, const std::string& place,
                                   const char* names);

}  // namespace quern
