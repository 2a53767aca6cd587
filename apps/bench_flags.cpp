#include "bench_flags.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "base/build_info.h"
#include "config/config_print.h"
#include "config/config_table.h"
#include "io/folder.h"
#include "model/model_config.h"

namespace quern {

namespace {

constexpr int64_t kMostIterations = 1'000'000;

}  // namespace

std::vector<std::string> split_list(const ParsedArgs& parsed, const std::string& flag) {
  const std::string& text = parsed.extra.at(flag);
  if (text.empty()) return {};
  const std::vector<std::string> parts = split_commas(text);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) throw UsageError(cat("--", flag, " has an empty entry"));
    if (std::find(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), parts[i]) !=
        parts.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw UsageError(cat("--", flag, " has '", parts[i], "' twice"));
    }
  }
  return parts;
}

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool truth_of(const ParsedArgs& parsed, const std::string& flag) {
  const std::string& text = parsed.extra.at(flag);
  if (text == "true" || text == "false") return text == "true";
  throw UsageError(cat("--", flag, " is '", text, "', expected true or false"));
}

int64_t count_of(const ParsedArgs& parsed, const std::string& flag, int64_t least) {
  return number_of(parsed, flag, least, kMostCount);
}

int64_t iterations_of(const ParsedArgs& parsed, const std::string& flag, int64_t least) {
  return number_of(parsed, flag, least, kMostIterations);
}

std::vector<std::vector<int64_t>> shapes_of(const ParsedArgs& parsed, const std::string& form) {
  const auto extents_in = [&](const std::string& text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), 'x')) + 1;
  };
  std::vector<std::vector<int64_t>> shapes;
  for (const std::string& word : split_list(parsed, "shapes")) {
    std::vector<int64_t>& shape = shapes.emplace_back();
    for (size_t at = 0; at <= word.size();) {
      const size_t end = std::min(word.find('x', at), word.size());
      const auto extent = parse_number<int64_t>(word.substr(at, end - at));
      if (!extent || *extent < 1 || *extent > kMostExtent) break;
      shape.push_back(*extent);
      at = end + 1;
    }
    if (shape.size() == extents_in(word) && shape.size() == extents_in(form)) continue;
    throw UsageError(
        cat("--shapes has '", word, "', expected ", form, ", integers from 1 to ", kMostExtent));
  }
  return shapes;
}

std::vector<int64_t> counts_of(const ParsedArgs& parsed, const std::string& flag, int64_t least,
                               int64_t most) {
  std::vector<int64_t> counts;
  for (const std::string& word : split_list(parsed, flag)) {
    counts.push_back(number_from(word, flag, least, most));
  }
  return counts;
}

std::vector<std::string> words_of(const ParsedArgs& parsed, const std::string& flag,
                                  const std::vector<std::string>& known) {
  std::vector<std::string> words = split_list(parsed, flag);
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    throw UsageError(fmt::format("--{} has '{}', expected some of {}{}", flag, word,
                                 fmt::join(known, ", "), did_you_mean(word, known)));
  }
  return words;
}

std::vector<std::vector<std::string>> expand_lists(const std::vector<std::string>& args,
                                                   const std::vector<std::string>& keys,
                                                   std::set<std::string>& varying) {
  std::vector<std::string> rest;
  std::map<std::string, std::string> lists;  // the later value of a repeated flag counts
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = std::min(args[i].find('='), args[i].size());
    const std::string name = args[i].starts_with("--") ? args[i].substr(2, equals - 2) : "";
    const bool inline_value = equals < args[i].size();
    const bool valued = inline_value || (i + 1 < args.size() && !args[i + 1].starts_with("--"));
    if (args[i] == "--" || !valued || std::find(keys.begin(), keys.end(), name) == keys.end()) {
      rest.push_back(args[i]);
    } else {
      lists[name] = inline_value ? args[i].substr(equals + 1) : args[++i];
    }
  }
  std::vector<std::vector<std::string>> product{rest};
  for (const std::string& key : keys) {
    if (!lists.contains(key)) continue;
    const std::vector<std::string> values = split_commas(lists[key]);
    if (values.size() > 1) varying.insert(key);
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& line : product) {
      for (const std::string& value : values) {
        longer.push_back(line);
        longer.back().insert(longer.back().begin(), cat("--", key, "=", value));
      }
    }
    product = std::move(longer);
  }
  return product;
}

Config bench_config() {
  Config config;
  config.model.size = "small";
  apply_size(config.model, config.model.size);
  config.model.vocab_size = 10000;
  config.model.context = 512;
  config.train.batch = 4;
  config.optimizer.lr = 1e-4;
  return config;
}

Config decode_config() {
  Config config = bench_config();
  config.train.batch = 1;
  return config;
}

void check_writable(const std::string& flag, const std::filesystem::path& folder) {
  std::error_code error;
  create_folder(folder, error);
  const std::filesystem::path probe = folder / ".quern-probe";
  const bool written = !error && std::ofstream(probe).put('\n').flush().good();
  std::filesystem::remove(probe, error);
  QUERN_CHECK(written, "--", flag, " ", folder.string(), ": no file can be written there");
}

std::vector<ExtraFlag> with_format_flags(std::vector<ExtraFlag> flags) {
  flags.push_back({"format", "text, markdown, csv, or json: an object a line (default text)", ""});
  flags.push_back({"json", "the same as --format json", "", true});
  return flags;
}

std::vector<ExtraFlag> bench_flags(std::vector<ExtraFlag> flags) {
  flags.push_back({"wide", "every column of the text, also beyond 100 characters", "", true});
  return with_format_flags(flags);
}

TableFormat format_of(const ParsedArgs& parsed) {
  const std::string& name = parsed.extra.at("format");
  const bool json = parsed.on("json");
  if (name.empty()) return json ? TableFormat::json : TableFormat::text;
  const auto format = choice_of<TableFormat>(parsed, "format");
  if (json && format != TableFormat::json) {
    throw UsageError(cat("found --json and --format ", name, ", expected one of the two"));
  }
  return format;
}

std::string peer_name() {
  return cat("quern-", build_info().version);
}

std::string model_words(const Config& config) {
  const ModelSection& m = config.model;
  return cat(m.from.empty() ? m.size : m.from, ": ", m.layers, " layers of ", m.d_model, ", batch ",
             config.train.batch, ", context ", m.context, ", ", value_text(config, "precision"));
}

void print_now(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

void check_positional(const ParsedArgs& parsed, const std::string& command) {
  if (parsed.positional.empty()) return;
  throw UsageError(cat(command, ": found '", parsed.positional[0], "', expected only flags"));
}

void check_keys(const std::set<std::string>& given, const Command& command,
                const std::map<std::string, std::string>& instead) {
  const auto known = applicable_keys(accepted_keys(command), command.flags);
  for (const std::string& name : given) {
    if (std::ranges::count(known, find_key(name)) > 0) continue;
    const auto meant = instead.find(name);
    throw UsageError(cat(command.name, ": ", name, " has no meaning here",
                         meant == instead.end() ? "" : cat(", did you mean --", meant->second, "?"),
                         "\n`quern ", command.name, " --help` lists the flags"));
  }
}

ParsedArgs parse_command(const Command& command, const Arguments& args, const std::string& expected,
                         size_t least, size_t most) {
  ParsedArgs parsed = parse_args(args, command.flags);
  if (parsed.positional.size() < least || parsed.positional.size() > most) {
    throw UsageError(cat(command.name, ": ", expected, "\n", command.usage));
  }
  check_keys(command.keys.empty() ? parsed.given : parsed.flags, command);
  return parsed;
}

}  // namespace quern
