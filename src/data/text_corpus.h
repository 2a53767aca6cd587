// Text from disk as byte tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace quern {

// A file gives its bytes. A folder gives the bytes of all regular files in it and its subfolders,
// in the order of their paths, with kEndOfText between two files; empty files, and files and
// folders whose name begins with a dot, are left out. Throws naming the path when it is missing or
// holds no text, or when a file is something else: an archive, a picture; in a folder also
// token files and JSON lines, by their names. `any_bytes`: what they hold is not looked at.
std::vector<uint16_t> read_text(const std::filesystem::path& path, bool any_bytes = false);

}  // namespace quern
