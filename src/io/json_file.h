// Reads JSON, with checks that nlohmann's parser lacks and messages without the library's words.
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

// Values nested deeper than this are refused: nlohmann's dump() and comparison recurse.
inline constexpr int kDeepestJson = 200;

// Throws when `text` holds a zero byte, which nlohmann takes as the end, or nests values deeper
// than kDeepestJson. `place` begins the error: "tokenizer.json:".
void check_json_text(std::string_view text, const std::string& place);

// The reason of a parse error, "line 1, column 7: found '}', expected ...", from nlohmann's what().
std::string json_reason(std::string what);

}  // namespace quern
