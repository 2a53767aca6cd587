// Shell commands, for error messages about input that Quern does not read: Parquet and Arrow files,
// names of the Hugging Face Hub, pointers of Git LFS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace quern {

// The format of a file that begins with `head`, and a command that converts it: "is a Parquet file;
// `python3 -c '...'` writes it as JSON lines". Empty: neither Parquet nor Arrow.
std::string why_not_columns(const std::filesystem::path& path, std::string_view head);

// A download command, "; if it is a model of the Hugging Face Hub, `python3 -c '...'` downloads
// it", for a missing path that may be a Hub name: "org/name", "name", or these after "hf://" or the
// Hub's address. For a dangling link, names its target instead. Otherwise empty.
enum class HubKind { dataset, model };
std::string hub_hint(const std::string& path, HubKind kind);

// "; it is a pointer of Git LFS: `git lfs pull` gets the file" when `bytes` are one. Otherwise
// empty.
std::string lfs_hint(std::span<const std::byte> bytes);

}  // namespace quern
