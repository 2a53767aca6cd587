// What the benchmarks' command lines share: counts, lists, and which configuration keys matter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bench/table.h"
#include "config/config_parse.h"

namespace quern {

// The configuration keys that apply to a benchmark without a model, and to one of a training step.
inline const std::vector<std::string> kContextKeys = {"device", "threads", "seed", "deterministic"};
inline const std::vector<std::string> kStepKeys = {"[model]", "[compute]", "batch",      "seed",
                                                   "dropout", "z_loss",    "[optimizer]"};

// One extra flag as an integer from `least` to 2^40. Throws UsageError.
int64_t count_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);
// The same for a number of iterations, of which the times are kept: at most 10^6.
int64_t iterations_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);

// Splits at the commas; "a,,b" has three parts.
std::vector<std::string> split_commas(const std::string& text);

// "64,128"; none when the flag was not given. Throws UsageError, also for a list that is empty or
// has an entry twice.
std::vector<int64_t> counts_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);

// "naive,flash", each one of `known`; none when the flag was not given. Throws UsageError as
// counts_of does.
std::vector<std::string> words_of(const ParsedArgs& parsed, const std::string& flag,
                                  const std::vector<std::string>& known);

// The command lines that lists stand for: of each flag in `keys` that has several values separated
// by commas ("--ctx 128,256") one at a time, the product of all, the last flag varying fastest.
// `varying` gets the names of the flags with several values.
std::vector<std::vector<std::string>> expand_lists(const std::vector<std::string>& args,
                                                   const std::vector<std::string>& keys,
                                                   std::set<std::string>& varying);

// The model that `bench step`, `profile` and `memory` take unless told otherwise, as torch_lm.py
// does: small, batch 4, ctx 512, a vocabulary of 10,000.
Config bench_config();

// Makes the folder and throws when no file can be written there: to be known before a long run,
// whose result would be lost.
void check_writable(const std::string& flag, const std::filesystem::path& folder);

// What every benchmark takes besides its own: --format, and --json, which means --format json.
std::vector<ExtraFlag> with_format_flags(std::vector<ExtraFlag> flags);

// The same and --wide, of the benchmarks.
std::vector<ExtraFlag> bench_flags(std::vector<ExtraFlag> flags);

// --format and --json. Throws UsageError on an unknown format, or when they contradict each other.
TableFormat format_of(const ParsedArgs& parsed);

// "quern-0.1.0": the JSON lines' `peer`.
std::string peer_name();

// "small: 12 layers of 768, batch 4, context 512, bf16".
std::string model_words(const Config& config);

// Prints at once, so that a row is seen as soon as it is done.
void print_now(const std::string& text);

// Throws UsageError on an argument that is no flag. `command` is "bench kernels".
void check_positional(const ParsedArgs& parsed, const std::string& command);
// For benchmarks without a model: throws UsageError on configuration keys but kContextKeys.
// `instead`: for a key the flag that was meant.
void check_keys(const ParsedArgs& parsed, const std::string& command,
                const std::map<std::string, std::string>& instead);

}  // namespace quern
