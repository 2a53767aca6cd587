// Small files that may be absent. Only "no such file" counts as absent; a file that is there but
// cannot be read is an error.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>

namespace quern {

// The content, at most its first `most` bytes; empty if there is no such file. Throws naming the
// path when it is not a regular file or cannot be read.
std::optional<std::string> read_if_there(const std::filesystem::path& path,
                                         size_t most = std::numeric_limits<size_t>::max());

// Follows links. Throws naming the path when its existence is unknown (permission, I/O error).
bool is_there(const std::filesystem::path& path);

}  // namespace quern
