// Reads the text of one line of a JSONL file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "data/document_reader.h"

namespace quern {

// Reads the string member `field` of the object into `text`; the last duplicate counts. Otherwise
// returns the error: kind, column and the value found. Its line number stays 0.
std::optional<BadInput> read_json_text(std::string_view line, const std::string& field,
                                       std::string& text);

}  // namespace quern
