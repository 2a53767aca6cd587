// Whole token files for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "data/token_file.h"

namespace quern::testing_support {

// Writes atomically. Throws when a token does not fit the encoding or the file cannot be written;
// an existing file then stays unchanged.
void write_token_file(const std::filesystem::path& path, std::span<const int32_t> tokens,
                      TokenEncoding encoding);

}  // namespace quern::testing_support
