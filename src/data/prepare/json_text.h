// The text of one line of a JSONL file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/document_reader.h"

namespace quern {

// Puts the string that the object's member `field` holds into `text`; of several members of that
// name the last one counts. Or says what is wrong with the line: kind, column and what was found
// (the line's number is left 0).
std::optional<BadInput> read_json_text(std::string_view line, const std::string& field,
                                       std::string& text);

}  // namespace quern
