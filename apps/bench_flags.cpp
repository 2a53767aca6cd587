#include "bench_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "train/config_table.h"

namespace quern {

namespace {

constexpr int64_t kMost = int64_t{1} << 40;
constexpr std::array kKeys{"device", "threads", "seed", "deterministic"};

int64_t parse_count(const std::string& flag, const std::string& text, int64_t least) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < least || count > kMost) {
    throw UsageError(
        cat("--", flag, " is ", text, ", expected an integer from ", least, " to ", kMost));
  }
  return count;
}

std::vector<std::string> split_list(const ParsedArgs& parsed, const std::string& flag) {
  std::vector<std::string> parts;
  std::istringstream words(parsed.extra.at(flag));
  for (std::string word; std::getline(words, word, ',');) parts.push_back(word);
  return parts;
}

std::string help_line(const std::string& name, const std::string& text) {
  return fmt::format("  --{:<14} {}\n", name, text);
}

}  // namespace

int64_t count_of(const ParsedArgs& parsed, const std::string& flag, int64_t least) {
  return parse_count(flag, parsed.extra.at(flag), least);
}

std::vector<int64_t> counts_of(const ParsedArgs& parsed, const std::string& flag, int64_t least) {
  std::vector<int64_t> counts;
  for (const std::string& word : split_list(parsed, flag)) {
    counts.push_back(parse_count(flag, word, least));
  }
  return counts;
}

std::vector<std::string> words_of(const ParsedArgs& parsed, const std::string& flag,
                                  const std::vector<std::string>& known) {
  std::vector<std::string> words = split_list(parsed, flag);
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    std::string all;
    for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
    throw UsageError(
        cat("--", flag, " has '", word, "', expected some of ", all, did_you_mean(word, known)));
  }
  return words;
}

void check_arguments(const ParsedArgs& parsed, const std::string& command) {
  if (!parsed.positional.empty()) {
    throw UsageError(cat(command, ": found '", parsed.positional[0], "', expected flags alone"));
  }
  for (const std::string& key : parsed.given) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    throw UsageError(cat(command, ": ", key, " has no meaning here\n`quern ", command,
                         " --help` lists the flags"));
  }
}

std::string help_without_model(const std::vector<ExtraFlag>& flags) {
  std::string text;
  for (const ExtraFlag& flag : flags) {
    const bool silent = flag.is_switch || flag.value.empty();
    text += help_line(flag.name, flag.help + (silent ? "" : " (default " + flag.value + ")"));
  }
  for (const char* name : kKeys) text += help_line(name, find_key(name)->help);
  return text;
}

}  // namespace quern
