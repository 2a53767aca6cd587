// JSON from disk, for the sources of this folder.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace quern {

// The object in the file. Throws naming the file when it is missing, not JSON or not an object.
// Members keep the file's order.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);
// The same sorted by name, for objects of many members: those of the other kind are found one by
// one.
nlohmann::json read_sorted_json_object(const std::filesystem::path& path);

// The value of `text`, whose objects at `depth` (1: the value itself) name no member twice; the
// library would keep the last one. Errors begin with `place`: "file: header names 'x' twice".
nlohmann::json parse_distinct_json(std::string_view text, int depth, const std::string& place,
                                   const char* names);

}  // namespace quern
