// Small text files whose last line is a comment with the checksum of those before it:
// "# xxh3 0123456789abcdef". A file without one is taken as it is: a hand or an earlier version
// wrote it.
#pragma once

#include <filesystem>
#include <string>

namespace quern {

std::string sealed(std::string text);  // text ends with a newline

// The text without that line. Throws naming `path` and both checksums when they differ.
std::string unsealed(std::string text, const std::filesystem::path& path);

}  // namespace quern
