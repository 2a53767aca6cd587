// JSON from disk, for the sources of this folder.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace quern {

// The object in the file. Throws naming the file when it is missing, not JSON or not an object.
// Members keep the file's order.
nlohmann::ordered_json read_json_object(const std::filesystem::path& path);
// The same sorted by name, for objects of many members: those of the other kind are found one by
// one.
nlohmann::json read_sorted_json_object(const std::filesystem::path& path);

}  // namespace quern
