// Commands for the shell that run one line of Python, for error messages about what Quern does not
// read: Parquet and Arrow files, and names of the Hugging Face Hub.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace quern {

// What a file that begins with `head` is, and the command that makes PATH.jsonl of it: "is a
// Parquet file; `python3 -c '...'` writes it as JSON lines". Empty: neither Parquet nor Arrow.
std::string why_not_columns(const std::filesystem::path& path, std::string_view head);

// "; if ... is on the Hugging Face Hub, `python3 -c '...'` downloads it" for a path that is not
// there and may be such a name: "org/name", or a name after "hf://" or the Hub's address. Empty:
// it is a path, or none of these.
enum class HubKind { dataset, model };
std::string hub_hint(const std::string& path, HubKind kind);

}  // namespace quern
