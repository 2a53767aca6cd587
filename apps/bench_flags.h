// Shared by the commands: numbers, counts and lists as flags, and the configuration keys that
// apply.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/parse_number.h"
#include "bench/table.h"
#include "commands.h"
#include "config/config_parse.h"

namespace quern {

// The configuration keys of a benchmark without a model, and of one of a training step.
inline const std::vector<std::string> kContextKeys = {"device", "threads", "cpu_level", "seed",
                                                      "deterministic"};
inline const std::vector<std::string> kStepKeys = {"[model]", "[compute]", "batch",      "seed",
                                                   "dropout", "z_loss",    "[optimizer]"};

inline constexpr int64_t kMostCount = int64_t{1} << 40, kMostExtent = int64_t{1} << 30;

// A text of the flag as a number from `least` to `most`. Throws UsageError.
template <class T>
T number_from(const std::string& text, const std::string& flag, T least, T most) {
  const std::optional<T> value = parse_number<T>(text);
  if (value >= least && value <= most) return *value;
  throw UsageError(fmt::format("--{} is {}, expected {} from {} to {}", flag, text,
                               std::is_integral_v<T> ? "an integer" : "a number", least, most));
}

// One extra flag as such a number.
template <class T>
T number_of(const ParsedArgs& parsed, const std::string& flag, T least, T most) {
  return number_from(parsed.extra.at(flag), flag, least, most);
}

// The same for "true" and "false".
bool truth_of(const ParsedArgs& parsed, const std::string& flag);

// One extra flag as an integer from `least` to kMostCount. Throws UsageError.
int64_t count_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);
// The same for a number of iterations: at most 10^6, since every time is kept.
int64_t iterations_of(const ParsedArgs& parsed, const std::string& flag, int64_t least);

// The parts of a list; none when the flag was not given. Throws UsageError, also for an empty or a
// repeated entry.
std::vector<std::string> split_list(const ParsedArgs& parsed, const std::string& flag);
// Splits at the commas; "a,,b" has three parts.
std::vector<std::string> split_commas(const std::string& text);

// The entries of --shapes, each with an extent for every letter of `form`: "512x512x64,8x1x2" for
// "MxNxK". Throws UsageError, also for extents below 1 or above kMostExtent.
std::vector<std::vector<int64_t>> shapes_of(const ParsedArgs& parsed, const std::string& form);

// "64,128"; empty when the flag was not given. Throws UsageError, also for an empty or a repeated
// entry.
std::vector<int64_t> counts_of(const ParsedArgs& parsed, const std::string& flag, int64_t least,
                               int64_t most = kMostCount);

// "naive,flash", each one of `known`; empty when the flag was not given. Throws UsageError like
// counts_of.
std::vector<std::string> words_of(const ParsedArgs& parsed, const std::string& flag,
                                  const std::vector<std::string>& known);

// The values of `all`, an enumeration with kNamesOf, whose names the flag lists. Throws UsageError
// like words_of.
template <class E>
std::vector<E> choices_of(const ParsedArgs& parsed, const std::string& flag,
                          const std::vector<E>& all) {
  std::vector<std::string> names(all.size());
  std::ranges::transform(all, names.begin(), [](E value) { return name_of(value); });
  std::vector<E> chosen;
  for (const std::string& word : words_of(parsed, flag, names)) {
    chosen.push_back(all[static_cast<size_t>(std::ranges::find(names, word) - names.begin())]);
  }
  return chosen;
}

// The same, of the whole enumeration.
template <class E>
std::vector<E> choices_of(const ParsedArgs& parsed, const std::string& flag) {
  return choices_of(parsed, flag, values_of<E>());
}

// The one value that the flag names. Throws UsageError.
template <class E>
E choice_of(const ParsedArgs& parsed, const std::string& flag) {
  const std::string& text = parsed.extra.at(flag);
  const std::vector<std::string> names(kNamesOf<E>.begin(), kNamesOf<E>.end());
  const auto found = std::ranges::find(names, text);
  if (found != names.end()) return static_cast<E>(found - names.begin());
  throw UsageError(fmt::format("--{} is '{}', expected {} or {}{}", flag, text,
                               fmt::join(names.begin(), names.end() - 1, ", "), names.back(),
                               did_you_mean(text, names)));
}

// The command lines for flags in `keys` that have several values ("--ctx 128,256"): the product of
// all their values, the last flag varying fastest. `varying` gets the names of the flags with
// several values.
std::vector<std::vector<std::string>> expand_lists(const std::vector<std::string>& args,
                                                   const std::vector<std::string>& keys,
                                                   std::set<std::string>& varying);

// The defaults of `bench step`, `profile` and `memory`, as in torch_lm.py: small, batch 4, ctx 512,
// a vocabulary of 10,000.
Config bench_config();
// Those of `bench decode`: the same with batch 1.
Config decode_config();

// Creates the folder. Throws when no file can be written there: a long run must not lose its
// result.
void check_writable(const std::string& flag, const std::filesystem::path& folder);

// Adds the common flags: --format, and --json, which means --format json.
std::vector<ExtraFlag> with_format_flags(std::vector<ExtraFlag> flags);

// Adds the same flags and --wide, for the benchmarks.
std::vector<ExtraFlag> bench_flags(std::vector<ExtraFlag> flags);

// From --format and --json. Throws UsageError on an unknown format, or when they disagree.
TableFormat format_of(const ParsedArgs& parsed);

// "quern-0.1.0": the value of `peer` in JSON lines.
std::string peer_name();

// "small: 12 layers of 768, batch 4, context 512, bf16".
std::string model_words(const Config& config);

// Flushes, so that a row appears as soon as it is done.
void print_now(const std::string& text);

// Throws UsageError on an argument that is no flag. `command`: "bench kernels".
void check_positional(const ParsedArgs& parsed, const std::string& command);
// Throws UsageError if the command does not accept one of the configuration keys `given`.
// `instead`: the flag to suggest for a key.
void check_keys(const std::set<std::string>& given, const Command& command,
                const std::map<std::string, std::string>& instead = {});

// parse_args and check_keys; a command with keys ignores the others of a file, which may be that of
// the training. Throws UsageError with `expected` and the usage unless the number of positional
// arguments is from `least` to `most`.
ParsedArgs parse_command(const Command& command, const Arguments& args,
                         const std::string& expected = "", size_t least = 0,
                         size_t most = SIZE_MAX);

}  // namespace quern
