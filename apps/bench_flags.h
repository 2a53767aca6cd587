// What the benchmarks' command lines share: counts, lists, and which configuration keys matter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config_parse.h"

namespace quern {

// One extra flag as an integer from `least` to 2^40. Throws UsageError.
int64_t count_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);

// "64,128"; none when the flag was not given. Throws UsageError.
std::vector<int64_t> counts_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);

// "naive,flash", each one of `known`; none when the flag was not given. Throws UsageError.
std::vector<std::string> words_of(const ParsedArgs& parsed, const std::string& flag,
                                  const std::vector<std::string>& known);

// For benchmarks without a model: flags alone, and of the configuration's keys only device,
// threads, seed and deterministic. `command` is "bench kernels". Throws UsageError.
void check_arguments(const ParsedArgs& parsed, const std::string& command);
std::string help_without_model(const std::vector<ExtraFlag>& flags);

}  // namespace quern
