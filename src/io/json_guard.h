// Checks of JSON text that nlohmann's parser lacks, and its messages without the library's words.
#pragma once

#include <string>
#include <string_view>

namespace quern {

// Values nested deeper than this are refused: nlohmann's dump() and comparison recurse.
inline constexpr int kDeepestJson = 200;

// Throws when `text` holds a zero byte, which nlohmann takes as the end, or nests values deeper
// than kDeepestJson. `place` begins the error: "tokenizer.json:".
void check_json_text(std::string_view text, const std::string& place);

// The reason of a parse error, "line 1, column 7: found '}', expected ...", from nlohmann's what().
std::string json_reason(std::string what);

}  // namespace quern
