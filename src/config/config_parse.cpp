#include "config/config_parse.h"

// toml++ 3.3 asserts that a key begins well ("[[[" does not), and then reports it as an error. An
// input must not end a build with assertions.
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>
#undef TOML_ASSERT

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "config/config_table.h"
#include "io/checksum.h"
#include "io/utf8.h"

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
  const std::string word = found.starts_with('"') ? found.substr(1, found.size() - 2) : found;
  usage_error(
      cat(subject, " is ", found, ", expected ", key.expected, did_you_mean(word, key.choices)));
}

std::vector<std::string> key_names(const std::string& section = "") {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_table()) {
    if (section.empty() || key.section == section) names.push_back(key.name);
  }
  return names;
}

// Words of other programs (nanoGPT, transformers, PyTorch, llama.cpp) for a key, a flag or a value.
struct Synonyms {
  const char *name, *words;
};
constexpr Synonyms kSynonyms[] = {
    {"steps",
     "max_iters max_steps num_steps train_steps iters iterations epochs num_epochs "
     "num_train_epochs"},
    {"batch", "batch_size micro_batch_size per_device_train_batch_size bs"},
    {"accumulate", "gradient_accumulation_steps grad_accum_steps grad_accum accumulation_steps"},
    {"ctx",
     "block_size seq_len seq_length sequence_length max_seq_len max_seq_length n_ctx "
     "context context_length ctx_size n_positions max_position_embeddings"},
    {"layers", "n_layer n_layers num_layers num_hidden_layers depth"},
    {"heads", "n_head n_heads num_heads num_attention_heads"},
    {"kv_heads", "n_kv_head n_kv_heads num_kv_heads num_key_value_heads"},
    {"d_model", "n_embd hidden_size hidden_dim embed_dim model_dim width"},
    {"d_ff", "intermediate_size ffn_dim n_inner"},
    {"vocab", "vocab_size n_vocab"},
    {"tied", "tie_word_embeddings tie_weights weight_tying"},
    {"norm_eps", "rms_norm_eps layer_norm_eps layer_norm_epsilon"},
    {"rope_theta", "rope_base rope_freq_base"},
    {"lr", "learning_rate"},
    {"warmup", "warmup_iters warmup_steps num_warmup_steps"},
    {"schedule", "decay_lr lr_decay_iters lr_scheduler lr_scheduler_type scheduler"},
    {"clip", "grad_clip clip_grad max_grad_norm gradient_clip_val"},
    {"weight_decay", "wd"},
    {"beta1", "adam_beta1"},
    {"beta2", "adam_beta2"},
    {"eps", "epsilon adam_epsilon"},
    {"optimizer", "optim"},
    {"eval_every", "eval_interval eval_steps val_every"},
    {"eval_batches", "eval_iters"},
    {"log_every", "log_interval logging_steps"},
    {"checkpoint_every", "save_steps save_every save_interval"},
    {"keep", "save_total_limit"},
    {"train", "dataset data data_dir train_data train_file"},
    {"validation", "val valid val_data validation_file"},
    {"validation_fraction", "val_fraction val_split test_size"},
    {"from", "init_from model_name_or_path checkpoint pretrained"},
    {"resume", "resume_from resume_from_checkpoint"},
    {"out", "out_dir output_dir output o"},
    {"precision", "dtype torch_dtype amp bf16 fp16 tf32 fp8 mixed_precision"},
    {"graph", "compile torch_compile cuda_graph"},
    {"recompute", "gradient_checkpointing activation_checkpointing"},
    {"attention", "attn_implementation flash_attention flash_attn"},
    {"device", "gpu cuda cpu"},
    {"threads", "n_threads num_threads num_workers"},
    {"tokens", "max_new_tokens max_tokens max_length num_tokens n_predict n"},
    {"temperature", "greedy do_sample"},
    {"prompt", "start p"},
    {"stop", "stop_strings stop_sequences"},
    {"cuda", "gpu"},
    {"fp32", "float32 float"},
    {"bf16", "bfloat16 fp16 float16 half"},
    {"float32", "fp32 f32"},
    {"bfloat16", "bf16"},
    {"float16", "fp16 f16 half"},
    {"tensorboard", "wandb wandb_log report_to"},
    {"ranks", "world_size nproc nproc_per_node num_processes n_ranks num_ranks np"},
    {"gpus", "n_gpus num_gpus ngpus devices"},
    {"parallel", "strategy distributed"},
    {"comm_limit", "timeout nccl_timeout ddp_timeout"},
};

// The candidate with `word` among its synonyms; empty if there is none.
std::string synonym(const std::string& word, const std::vector<std::string>& candidates) {
  for (const auto& [name, words] : kSynonyms) {
    const bool listed = cat(" ", words, " ").find(cat(" ", word, " ")) != std::string::npos;
    if (listed && std::ranges::count(candidates, name) > 0) return name;
  }
  return "";
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
  std::string meant = nearest(name, key_names(section));
  if (meant.empty()) meant = synonym(name, key_names());
  if (meant.empty()) return cat("unknown key ", name, in);
  const std::string& home = find_key(meant)->section;
  return cat("unknown key ", name, in, ", did you mean ", meant,
             home == section ? "" : cat(" in [", home, "]"), "?");
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
  return assignments;
}

// The description of a parse error without the library's words.
std::string toml_reason(std::string what) {
  constexpr std::string_view kBegin = "Error while parsing ", kMacro = " (TOML_";
  if (what.starts_with(kBegin)) what.erase(0, kBegin.size());
  return what.substr(0, what.find(kMacro));
}

std::string text_of(const std::string& path) {
  std::error_code ignored;  // a path that cannot be examined cannot be read either
  if (std::filesystem::is_directory(path, ignored)) {
    usage_error(cat("config: ", path, " is a folder, expected a TOML file"));
  }
  std::ifstream file(path);
  if (!file) usage_error(cat("config: cannot read ", path, ": ", std::strerror(errno)));
  return {std::istreambuf_iterator<char>(file), {}};
}

// The position behind the TOML string whose opening quote is at `i`; the text's end without a
// closing quote.
size_t behind_string(std::string_view text, size_t i) {
  const char quote = text[i];
  const std::string three(3, quote);
  const bool long_form = text.substr(i).starts_with(three);  // may hold line ends and quotes
  for (i += long_form ? 3 : 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (long_form && text.substr(i).starts_with(three)) {
      i += 3;
      for (int more = 0; more < 2 && i < text.size() && text[i] == quote; ++more) ++i;
      return i;
    } else if (!long_form && text[i] == quote) {
      return i + 1;
    } else if (!long_form && text[i] == '\n') {
      break;  // an error, at which the parser stops
    }
  }
  return text.size();
}

// Refuses a character beyond ASCII outside of strings and comments, where TOML knows none: toml++
// 3.3 reaches a point there that it has declared unreachable, which is undefined behaviour.
void check_bare_characters(std::string_view text, const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  size_t i = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  while (i < text.size()) {
    if (text[i] == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (text[i] == '"' || text[i] == '\'') {
      i = behind_string(text, i);
    } else if (static_cast<unsigned char>(text[i]) >= 0x80) {
      size_t end = i + 1;
      while (end < text.size() && continues_utf8(text[end])) ++end;
      usage_error(cat(path, ":", 1 + std::ranges::count(text.substr(0, i), '\n'),
                      ": is not valid TOML: saw '", printable_utf8(text.substr(i, end - i)),
                      "', expected it in straight quotes or in a comment"));
    } else {
      ++i;
    }
  }
}

std::vector<Assignment> read_text(const std::string& text, const std::string& path) {
  check_bare_characters(text, path);
  toml::table root;
  try {
    root = toml::parse(std::string_view(text), path);
  } catch (const toml::parse_error& error) {
    usage_error(cat(path, ":", error.source().begin.line,
                    ": is not valid TOML: ", toml_reason(std::string(error.description()))));
  }
  std::vector<Assignment> assignments;
  const std::vector<std::string> sections = section_names();
  for (const auto& [toml_key, node] : root) {
    const std::string name(toml_key.str());
    const std::string where = cat(path, ":", toml_key.source().begin.line, ": ");
    const bool known = std::ranges::count(sections, name) > 0;
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
  std::ranges::stable_sort(assignments, {}, &Assignment::key);
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
        unknown_flag(arg, arg.substr(1));
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

    const auto own = std::ranges::find(extra_, name, &ExtraFlag::name);
    if (own != extra_.end()) {
      parsed.extra_given.insert(name);
      parsed.extra[name] = own_value(*own);
    } else if (name == "config") {
      const std::string before = std::exchange(parsed.config_file, value(name, "a TOML file"));
      if (!before.empty()) {
        usage_error(cat("found --config ", before, " and --config ", parsed.config_file,
                        ", expected one file"));
      }
      if (parsed.config_file.empty()) usage_error("--config is empty, expected a TOML file");
    } else if (const ConfigKey* key = find_key(name)) {
      const std::string text =
          key->kind == ValueKind::boolean ? switch_value(name) : value(name, key->expected);
      const std::string found = text.empty() ? "empty" : text;
      const std::optional<ConfigValue> parsed_value = parse_value(*key, text);
      if (!parsed_value) wrong_value(*key, "--" + name, found);
      assignments.push_back({key, *parsed_value, "--" + name, found});
    } else {
      unknown_flag(cat("--", name), name);
    }
  }

  std::string own_value(const ExtraFlag& flag) {
    std::string text = flag.is_switch ? switch_value(flag.name) : value(flag.name, "a value");
    if (flag.is_switch && text != "true" && text != "false") {
      usage_error(cat("--", flag.name, " is '", text, "', expected true or false"));
    }
    if (text.empty() && !flag.may_be_empty) {
      usage_error(
          cat("--", flag.name, " is empty, expected a value; is a variable of the shell not set?"));
    }
    return text;
  }

  [[noreturn]] void unknown_flag(const std::string& arg, const std::string& name) const {
    std::vector<std::string> known = key_names();
    for (const ExtraFlag& flag : extra_) known.push_back(flag.name);
    known.emplace_back("config");
    const std::string hint = did_you_mean(name, known, "--");
    const bool dashes = arg.starts_with("--");
    usage_error(
        cat("unknown flag ", arg, hint.empty() && !dashes ? ", expected --key value" : hint));
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

void validate(const Config& config) {
  ModelConfig model = config.model;
  if (model.vocab_size == 0) model.vocab_size = 1;  // unknown until the data is open
  try {
    model.validate();
    validate_options(model, config.compute);
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void validate_ranks(const ParallelSection& parallel) {
  if (parallel.ranks == 1 || parallel.parallel != Parallel::none) return;
  usage_error(cat("parallel is none, but there are ", parallel.ranks,
                  " ranks; expected auto, ddp, zero1, zero2 or fsdp"));
}

ParsedArgs parse_unvalidated(const std::vector<std::string>& args,
                             const std::vector<ExtraFlag>& extra, const Config& base,
                             const ResolveFrom& resolve) {
  ArgReader reader(args, extra);
  reader.read();
  ParsedArgs parsed = std::move(reader.parsed);
  parsed.config = base;

  std::vector<Assignment> file;
  if (!parsed.config_file.empty())
    file = read_text(text_of(parsed.config_file), parsed.config_file);
  for (const Assignment& a : reader.assignments) parsed.flags.insert(a.key->name);
  parsed.given = parsed.flags;
  for (const Assignment& a : file) parsed.given.insert(a.key->name);
  // A flag replaces the file's key, so that a size given twice is applied once.
  std::erase_if(file, [&](const Assignment& in_file) {
    return std::ranges::count(reader.assignments, in_file.key, &Assignment::key) > 0;
  });
  apply(std::move(file), parsed.config);
  apply(std::move(reader.assignments), parsed.config);
  if (parsed.given.contains("from") && !parsed.config.model.from.empty()) {
    const bool resumes = !parsed.config.run.resume.empty();
    if (resumes && parsed.flags.contains("from")) {
      usage_error("found --from and --resume; a resumed run continues from its own checkpoint");
    }
    if (resumes) {
      parsed.config.model.from = base.model.from;  // the file may be that of the run's start
    } else if (resolve) {
      resolve(parsed.config, parsed.given);
    }
  }
  return parsed;
}

ParsedArgs parse_args(const std::vector<std::string>& args, const std::vector<ExtraFlag>& extra,
                      const Config& base, const ResolveFrom& resolve) {
  ParsedArgs parsed = parse_unvalidated(args, extra, base, resolve);
  validate(parsed.config);
  return parsed;
}

Config load_config(const std::string& path, const Config& base) {
  Config config = base;
  apply(read_text(unsealed(text_of(path), path), path), config);
  try {
    validate(config);
  } catch (const UsageError& error) {
    usage_error(cat(path, ": ", error.what()));
  }
  return config;
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string found = synonym(word, candidates);
  if (!found.empty()) return found;
  size_t best = word.size() <= 3 ? 2 : std::max<size_t>(2, word.size() / 2) + 1;
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
