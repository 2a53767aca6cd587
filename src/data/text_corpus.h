// Text from disk as byte tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace quern {

// Reads the bytes of a file, or of all regular files in a folder and its subfolders by path, with
// kEndOfText between two files. In a folder, skips empty files and names that begin with a dot.
// Throws naming the path when it is missing or has no text, or when a file is an archive or image.
// In a folder, token files and JSON lines are refused by name. `any_bytes` disables these checks of
// names and contents.
std::vector<uint16_t> read_text(const std::filesystem::path& path, bool any_bytes = false);

}  // namespace quern
