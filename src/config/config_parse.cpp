#include "config/config_parse.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>

#include "config/config_table.h"

namespace quern {

namespace {

// A key with its value, before it is applied. `subject` begins error messages: "a.toml:3: batch".
struct Assignment {
  const ConfigKey* key;
  ConfigValue value;
  std::string subject, found;
};

[[noreturn]] void usage_error(const std::string& message) {
  throw UsageError(message);
}

// A limit that a number reaches only in single precision, for messages.
std::string in_single_precision(const ConfigValue& value) {
  const double* x = std::get_if<double>(&value);
  if (!x || !std::isfinite(*x)) return "";
  const auto single = static_cast<float>(*x);
  if (single == *x || (std::isfinite(single) && single != 0.0f && single != 1.0f)) return "";
  return cat(" (", single, " in single precision)");
}

[[noreturn]] void wrong_value(const ConfigKey& key, const std::string& subject,
                              const std::string& found) {
  usage_error(cat(subject, " is ", found, ", expected ", key.expected));
}

std::vector<std::string> key_names(const std::string& section = "") {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_table()) {
    if (section.empty() || key.section == section) names.push_back(key.name);
  }
  return names;
}

// Levenshtein's distance, row by row.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

ConfigValue value_of(const toml::node& node, const ConfigKey& key, const std::string& subject) {
  if (const auto* x = node.as_boolean()) return x->get();
  if (const auto* x = node.as_integer()) return x->get();
  if (const auto* x = node.as_floating_point()) return x->get();
  if (const auto* x = node.as_string()) return x->get();
  wrong_value(key, subject, "an array, a table or a date");
}

// The message for an unknown or misplaced `name` in `section` ("" at the top of the file).
std::string misplaced(const std::string& name, const std::string& section) {
  const std::string in = section.empty() ? " at the top of the file" : " in [" + section + "]";
  if (const ConfigKey* key = find_key(name)) {
    return cat("key ", name, in, " belongs in [", key->section, "]");
  }
  return cat("unknown key ", name, in, did_you_mean(name, key_names(section)));
}

// In old run folders `recompute` is the number of blocks recomputed together, 0 for none.
void translate_recompute(std::vector<Assignment>& assignments) {
  const auto old = std::find_if(assignments.begin(), assignments.end(), [](const Assignment& a) {
    return a.key->name == "recompute" && std::holds_alternative<int64_t>(a.value);
  });
  if (old == assignments.end()) return;
  const int64_t blocks = std::get<int64_t>(old->value);
  if (blocks < 0) return;  // rejected like any other value
  old->value = blocks == 0 ? "none" : "blocks";
  if (blocks == 0) return;
  assignments.push_back({find_key("segment"), blocks, old->subject, old->found});
}

std::vector<Assignment> read_section(const std::string& path, const std::string& section,
                                     const toml::table& entries) {
  std::vector<Assignment> assignments;
  for (const auto& [toml_key, node] : entries) {
    const std::string name(toml_key.str());
    const std::string where = cat(path, ":", toml_key.source().begin.line, ": ");
    const ConfigKey* key = find_key(name);
    if (!key || key->section != section) usage_error(where + misplaced(name, section));
    const ConfigValue value = value_of(node, *key, where + name);
    assignments.push_back({key, value, where + name, to_toml(value)});
  }
  translate_recompute(assignments);
  return assignments;
}

std::vector<Assignment> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) usage_error(cat("config: cannot read ", path));
  toml::table root;
  try {
    root = toml::parse(file, path);
  } catch (const toml::parse_error& error) {
    usage_error(cat(path, ":", error.source().begin.line, ": ", error.description()));
  }
  std::vector<Assignment> assignments;
  const std::vector<std::string> sections = section_names();
  for (const auto& [toml_key, node] : root) {
    const std::string name(toml_key.str());
    const std::string where = cat(path, ":", toml_key.source().begin.line, ": ");
    const bool known = std::find(sections.begin(), sections.end(), name) != sections.end();
    const toml::table* entries = node.as_table();
    if (!entries && !known) usage_error(where + misplaced(name, ""));
    if (!entries) usage_error(cat(where, name, " is a value, expected a section [", name, "]"));
    if (!known)
      usage_error(cat(where, "unknown section [", name, "]", did_you_mean(name, sections)));
    for (Assignment& a : read_section(path, name, *entries)) assignments.push_back(std::move(a));
  }
  return assignments;
}

// Applies in the table's order, so that `size` precedes the dimensions. A key's last value wins.
void apply(std::vector<Assignment> assignments, Config& config) {
  std::stable_sort(assignments.begin(), assignments.end(),
                   [](const Assignment& a, const Assignment& b) { return a.key < b.key; });
  for (const Assignment& a : assignments) {
    if (a.key->set(config, a.value)) continue;
    wrong_value(*a.key, a.subject, a.found + in_single_precision(a.value));
  }
}

// Reads a command line into a ParsedArgs and assignments.
class ArgReader {
 public:
  ArgReader(const std::vector<std::string>& args, const std::vector<ExtraFlag>& extra)
      : args_(args), extra_(extra) {
    for (const ExtraFlag& flag : extra) parsed.extra[flag.name] = flag.value;
  }

  void read() {
    while (at_ < args_.size()) {
      const std::string& arg = args_[at_++];
      if (arg == "--") {
        while (at_ < args_.size()) add_positional(args_[at_++]);
      } else if (arg.starts_with("--")) {
        read_flag(arg);
      } else if (arg.size() > 1 && arg[0] == '-') {
        usage_error(cat("unknown flag ", arg, ", expected --key value"));
      } else {
        add_positional(arg);
      }
    }
  }

  ParsedArgs parsed;
  std::vector<Assignment> assignments;

 private:
  void add_positional(const std::string& arg) {
    parsed.positional.push_back(arg);
    if (!arg.empty()) return;
    usage_error(cat("argument ", parsed.positional.size(),
                    " is empty, expected a name; is a variable of the shell not set?"));
  }

  void read_flag(const std::string& arg) {
    const size_t equals = arg.find('=');
    std::string name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    inline_value_.reset();
    if (equals != std::string::npos) inline_value_ = arg.substr(equals + 1);

    const auto own = std::find_if(extra_.begin(), extra_.end(),
                                  [&](const ExtraFlag& flag) { return flag.name == name; });
    if (own != extra_.end()) {
      parsed.extra_given.insert(name);
      parsed.extra[name] = own->is_switch ? switch_value(name) : value(name, "a value");
    } else if (name == "config") {
      parsed.config_file = value(name, "a TOML file");
      if (parsed.config_file.empty()) usage_error("--config is empty, expected a TOML file");
    } else if (const ConfigKey* key = find_key(name)) {
      const std::string text =
          key->kind == ValueKind::boolean ? switch_value(name) : value(name, key->expected);
      const std::string found = text.empty() ? "empty" : text;
      const std::optional<ConfigValue> parsed_value = parse_value(*key, text);
      if (!parsed_value) wrong_value(*key, "--" + name, found);
      assignments.push_back({key, *parsed_value, "--" + name, found});
    } else {
      std::vector<std::string> known = key_names();
      for (const ExtraFlag& flag : extra_) known.push_back(flag.name);
      known.emplace_back("config");
      usage_error(cat("unknown flag --", name, did_you_mean(name, known, "--")));
    }
  }

  std::string value(const std::string& name, const std::string& expected) {
    if (inline_value_) return *inline_value_;
    if (at_ == args_.size() || args_[at_].starts_with("--")) {
      usage_error(
          cat("--", name, " has no value, expected ", expected,
              at_ < args_.size() ? " (write --" + name + "=VALUE if it begins with --)" : ""));
    }
    return args_[at_++];
  }

  // A switch takes an optional true or false.
  std::string switch_value(const std::string& name) {
    const bool spelled = at_ < args_.size() && (args_[at_] == "true" || args_[at_] == "false");
    return inline_value_ || spelled ? value(name, "true or false") : "true";
  }

  const std::vector<std::string>& args_;
  const std::vector<ExtraFlag>& extra_;
  size_t at_ = 0;
  std::optional<std::string> inline_value_;
};

}  // namespace

ParsedArgs parse_args(const std::vector<std::string>& args, const std::vector<ExtraFlag>& extra,
                      const Config& base, const ResolveFrom& resolve) {
  ArgReader reader(args, extra);
  reader.read();
  ParsedArgs parsed = std::move(reader.parsed);
  parsed.config = base;

  std::vector<Assignment> file;
  if (!parsed.config_file.empty()) file = read_file(parsed.config_file);
  for (const Assignment& a : file) parsed.given.insert(a.key->name);
  for (const Assignment& a : reader.assignments) parsed.given.insert(a.key->name);
  // A flag replaces the file's key, so that a size given twice is applied once.
  std::erase_if(file, [&](const Assignment& in_file) {
    return std::any_of(reader.assignments.begin(), reader.assignments.end(),
                       [&](const Assignment& a) { return a.key == in_file.key; });
  });
  apply(std::move(file), parsed.config);
  apply(std::move(reader.assignments), parsed.config);
  if (parsed.given.contains("from") && !parsed.config.model.from.empty()) {
    if (!parsed.config.run.resume.empty()) {
      usage_error("found --from and --resume; a resumed run continues from its own checkpoint");
    }
    if (resolve) resolve(parsed.config, parsed.given);
  }
  validate(parsed.config);
  return parsed;
}

Config load_config(const std::string& path, const Config& base) {
  Config config = base;
  apply(read_file(path), config);
  validate(config);
  return config;
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  size_t best = word.size() <= 3 ? 2 : std::max<size_t>(2, word.size() / 2) + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= 3 && candidate.starts_with(word) && candidate != word;
    const size_t distance = begins ? 1 : edit_distance(word, candidate);
    if (distance >= best) continue;
    best = distance;
    found = candidate;
  }
  return found;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates,
                         const std::string& prefix) {
  const std::string found = nearest(word, candidates);
  return found.empty() ? "" : ", did you mean " + prefix + found + "?";
}

}  // namespace quern
