// Shell commands that run one line of Python, for error messages about input that Quern does not
// read: Parquet and Arrow files, and names of the Hugging Face Hub.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace quern {

// The format of a file that begins with `head`, and a command that converts it: "is a Parquet file;
// `python3 -c '...'` writes it as JSON lines". Empty: neither Parquet nor Arrow.
std::string why_not_columns(const std::filesystem::path& path, std::string_view head);

// A download command, "; if it is a model of the Hugging Face Hub, `python3 -c '...'` downloads
// it", for a missing path that may be a Hub name: "org/name", "name", or these after "hf://" or the
// Hub's address. Otherwise empty.
enum class HubKind { dataset, model };
std::string hub_hint(const std::string& path, HubKind kind);

}  // namespace quern
