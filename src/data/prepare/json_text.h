// Reads the text of one line of a JSONL file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/document_reader.h"

namespace quern {

// A file's extension, without that of its compression: .txt for a.txt.gz, .zst or .zstd.
std::string text_extension(std::filesystem::path path);
bool is_named_json_lines(const std::filesystem::path& path);  // .jsonl or .ndjson

// Throws a UsageError about --field unless one of the inputs, of which `first` is one, is JSONL.
void check_field_has_use(bool any_json_lines, const std::filesystem::path& first);

// Reads the string member `field` of the object into `text`; the last duplicate counts. Otherwise
// returns the error: kind, column and the value found. Its line number stays 0.
std::optional<BadInput> read_json_text(std::string_view line, const std::string& field,
                                       std::string& text);

}  // namespace quern
