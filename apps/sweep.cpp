// quern sweep: trains every combination of some keys' values, and ranks the runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/shell_word.h"
#include "bench/table.h"
#include "bench_flags.h"
#include "child_process.h"
#include "commands.h"
#include "config/config_print.h"
#include "config/config_table.h"
#include "io/atomic_file.h"
#include "io/file_lock.h"
#include "launch.h"
#include "report/report.h"
#include "run/checkpoint.h"
#include "run/load_model.h"
#include "run/metrics.h"

namespace quern {

namespace {

namespace fs = std::filesystem;

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

struct Combination {
  std::string name;                 // "lr=1e-3,seed=1"
  std::vector<std::string> values;  // one for each axis
  Arguments train;                  // the flags of `quern train`
  fs::path folder;
  Config config;
  std::string failure;  // empty: none
};

std::string key_of_flag(const std::string& arg) {
  if (!arg.starts_with("--")) return "";
  std::string name = arg.substr(2, arg.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// "lr=1e-3,3e-3".
Axis parse_axis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw UsageError(cat("sweep: --set is '", text, "', expected KEY=VALUE,VALUE"));
  }
  const Axis axis{key_of_flag(cat("--", text)), split_commas(text.substr(equals + 1))};
  const ConfigKey* key = find_key(axis.key);
  if (!key) {
    std::vector<std::string> names;
    for (const ConfigKey& known : config_table()) names.push_back(known.name);
    throw UsageError(
        cat("sweep: --set has the unknown key ", axis.key, did_you_mean(axis.key, names)));
  }
  if (key->section == "run") {
    throw UsageError(cat("sweep: --set has ", axis.key, ", but the sweep names the run folders"));
  }
  std::set<std::string> seen;
  for (const std::string& value : axis.values) {
    if (value.empty()) throw UsageError(cat("sweep: --set ", axis.key, " has an empty value"));
    if (!seen.insert(value).second) {
      throw UsageError(cat("sweep: --set ", axis.key, " has ", value, " twice"));
    }
  }
  return axis;
}

// Moves the axes out of `args`.
std::vector<Axis> take_axes(Arguments& args) {
  std::vector<Axis> axes;
  Arguments rest;
  std::set<std::string> keys;
  for (size_t i = 0; i < args.size(); ++i) {
    if (key_of_flag(args[i]) != "set") {
      rest.push_back(args[i]);
      continue;
    }
    const bool inline_value = args[i].starts_with("--set=");
    if (!inline_value && i + 1 == args.size()) {
      throw UsageError("sweep: --set has no value, expected KEY=VALUE,VALUE");
    }
    axes.push_back(parse_axis(inline_value ? args[i].substr(6) : args[++i]));
    if (!keys.insert(axes.back().key).second) {
      throw UsageError(cat("sweep: --set has ", axes.back().key, " twice"));
    }
  }
  for (const std::string& arg : rest) {
    if (keys.contains(key_of_flag(arg))) {
      throw UsageError(cat("sweep: found ", arg, " and --set of the same key"));
    }
  }
  args = rest;
  return axes;
}

// Moves --json out of `args`, which are those of `quern train`.
bool take_json(Arguments& args) {
  Arguments rest, json;
  for (size_t i = 0; i < args.size(); ++i) {
    if (key_of_flag(args[i]) != "json") {
      rest.push_back(args[i]);
      continue;
    }
    json.push_back(args[i]);
    const bool spelled = i + 1 < args.size() && (args[i + 1] == "true" || args[i + 1] == "false");
    if (spelled && args[i].find('=') == std::string::npos) json.push_back(args[++i]);
  }
  args = rest;
  return parse_args(json, {{"json", "", "false", true}}).on("json");
}

std::string folder_name(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '/' || c == ' ' || c == '\n'; }, '-');
  return text;
}

void check_common(const ParsedArgs& parsed) {
  check_positional(parsed, "sweep");
  const Config& config = parsed.config;
  if (config.run.out.empty()) throw UsageError("sweep: no --out, expected the sweep's folder");
  if (!config.run.resume.empty()) {
    throw UsageError("sweep: found --resume; the same command again resumes a sweep");
  }
  if (config.data.train.empty()) throw UsageError("sweep: no data; give --train FILE");
}

// All combinations, the last axis varying fastest, each parsed and checked as `quern train` would.
std::vector<Combination> combinations_of(const std::vector<Axis>& axes, const Arguments& args) {
  std::vector<Combination> all(1);
  for (const Axis& axis : axes) {
    std::vector<Combination> longer;
    for (const Combination& shorter : all) {
      for (const std::string& value : axis.values) {
        Combination c = shorter;
        c.name += cat(c.name.empty() ? "" : ",", axis.key, "=", folder_name(value));
        c.values.push_back(value);
        c.train.push_back(cat("--", axis.key, "=", value));
        longer.push_back(c);
      }
    }
    all = std::move(longer);
  }
  std::set<std::string> names;
  std::map<std::string, std::string> trained;  // names by configuration
  for (Combination& c : all) {
    c.train.insert(c.train.begin(), args.begin(), args.end());
    ParsedArgs parsed = parse_args(c.train, with_gpus_flag({}), {}, apply_model_from);
    check_common(parsed);
    apply_gpus("sweep", parsed);
    validate_ranks(parsed.config.parallel);
    c.config = parsed.config;
    c.folder = fs::path(c.config.run.out) / c.name;
    c.train.push_back(cat("--out=", c.folder.string()));
    if (!names.insert(c.name).second) {
      throw UsageError(cat("sweep: two combinations have the folder name ", c.name));
    }
    const auto [same, is_new] = trained.try_emplace(config_toml(c.config), c.name);
    if (!is_new) {
      throw UsageError(cat("sweep: ", same->second, " and ", c.name, " are the same training"));
    }
  }
  return all;
}

// Throws if an existing run was trained differently. Ignores values that a run resolves itself.
void check_folder(const Combination& c) {
  const fs::path file = c.folder / "config.toml";
  if (!fs::exists(file)) return;
  const Config found = load_config(file.string());
  const std::set<std::string> resolved{"vocab", "recompute", "gemm_table"};
  for (const ConfigKey& key : config_table()) {
    if (key.section == "run" || resolved.contains(key.name)) continue;
    const std::string there = to_toml(key.get(found)), wanted = to_toml(key.get(c.config));
    if (there == wanted) continue;
    throw UsageError(cat("sweep: ", c.folder.string(), " was trained with ", key.name, " = ", there,
                         ", found ", wanted, "; give another --out"));
  }
}

// Whether the run has ended with all steps done: its last line of the log says so.
bool is_done(const Combination& c) {
  const std::vector<int64_t> steps = checkpoint_steps(c.folder / "checkpoints");
  return !steps.empty() && steps.back() >= c.config.train.steps &&
         read_logged_state(c.folder / "metrics.jsonl", steps.back()).done;
}

// Trains the combination from its newest checkpoint; without one, --resume starts again.
void train(Combination& c) {
  Arguments args{"train", "--resume", c.folder.string()};
  if (!fs::exists(c.folder / "config.toml")) {
    args = c.train;
    args.insert(args.begin(), "train");
  }
  c.failure = run_quern(args, cat(c.folder.string(), ".log"));
}

struct Ranked {
  const Combination* combination;
  ReportSummary summary;
  bool trained;  // whether there is a run folder
};

// Runs by validation loss, lowest first; then runs without one, by loss; then the failed ones.
std::vector<Ranked> rank(const std::vector<Combination>& all) {
  std::vector<Ranked> ranked;
  for (const Combination& c : all) {
    const bool trained = fs::exists(c.folder / "config.toml");
    ranked.push_back(
        {&c, trained ? summarize(read_report_run(c.folder)) : ReportSummary(), trained});
  }
  const auto key = [](const Ranked& r) {
    const bool validated = std::isfinite(r.summary.best_val_loss) && r.trained;
    const double loss = validated ? r.summary.best_val_loss : r.summary.loss;
    return std::tuple(!r.combination->failure.empty(), !validated,
                      std::isnan(loss) ? HUGE_VAL : loss);
  };
  std::ranges::stable_sort(ranked, {}, key);
  return ranked;
}

void print_table(const std::vector<Ranked>& ranked, const std::vector<Axis>& axes, bool json) {
  Table table(json ? TableFormat::json : TableFormat::text, kAnyWidth, "");
  int64_t place = 0;
  for (const auto& [combination, s, trained] : ranked) {
    const Combination& c = *combination;
    const auto known = [there = trained](auto value) { return there ? Cell(value) : Cell(); };
    Fields fields{{{"rank", "rank", 0, 4}, c.failure.empty() ? Cell(++place) : Cell()}};
    for (size_t i = 0; i < axes.size(); ++i) {
      fields.push_back({{axes[i].key, axes[i].key, 0, 8}, c.values[i]});
    }
    const std::string status = c.failure.empty() ? s.status : cat("failed: ", c.failure);
    const Cell step = s.best_step > 0 ? known(int64_t{s.best_step}) : Cell();
    const Fields figures{{{"validation", "best_val_loss", 4}, known(s.best_val_loss)},
                         {{"at step", "best_step"}, step},
                         {{"loss", "loss", 4}, known(s.loss)},
                         {{"tokens/s", "tokens_per_s"}, known(s.tokens_per_s)},
                         {{"s", "seconds", 1, 8}, known(s.train_seconds)},
                         {{"", "folder"}, c.folder.string()},
                         {{"status", "status", 0, 6, Align::left}, status}};
    print_now(table.add({fields, figures, {}}));
  }
}

// Writes the page with the runs in rank order. Possibly no run has metrics yet.
void write_report(const std::vector<Ranked>& ranked, const std::vector<Axis>& axes,
                  const fs::path& path) {
  std::vector<fs::path> folders;
  for (const Ranked& r : ranked) {
    if (r.trained && r.summary.step > 0) folders.push_back(r.combination->folder);
  }
  if (folders.empty()) return;
  std::string title = "Sweep of ";
  for (const Axis& axis : axes) title += (&axis == axes.data() ? "" : ", ") + axis.key;
  write_file_atomically(path, report_page(read_report_runs(folders), title));
  fmt::print(stderr, "wrote {}\n", path.string());
}

int run_sweep(const Arguments& all_args) {
  Arguments args = all_args;
  const bool json = take_json(args);
  const std::vector<Axis> axes = take_axes(args);
  if (axes.empty()) throw UsageError("sweep: no --set, expected --set KEY=VALUE,VALUE");
  std::vector<Combination> all = combinations_of(axes, args);
  for (const Combination& c : all) check_folder(c);
  const fs::path out = all[0].folder.parent_path();
  std::error_code unknown;  // check_writable says why
  if (fs::exists(out / "checkpoints", unknown)) {
    throw UsageError(cat("sweep: ", out.string(), " is a run, expected a folder for several"));
  }
  check_writable("out", out);
  // Two sweeps in one folder would train the same runs.
  const FileLock lock(out / ".lock", cat("sweep: another sweep is running in ", out.string()));
  const StopSignals signals;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string head = fmt::format("[{}/{}] {}", i + 1, all.size(), all[i].name);
    if (is_done(all[i])) {
      fmt::print(stderr, "{}: done before\n", head);
      continue;
    }
    fmt::print(stderr, "{}: training; `quern watch {}` shows it\n", head,
               shell_word(all[i].folder.string()));
    train(all[i]);
    if (signals.received() != 0) {
      fmt::print(stderr, "stopped; the checkpoints are saved. Go on with the same command.\n");
      return 128 + signals.received();
    }
    if (!all[i].failure.empty()) fmt::print(stderr, "{}: failed: {}\n", head, all[i].failure);
  }
  const std::vector<Ranked> ranked = rank(all);
  print_table(ranked, axes, json);
  write_report(ranked, axes, out / "report.html");
  const bool failed = std::ranges::any_of(all, [](const auto& c) { return !c.failure.empty(); });
  return failed ? 1 : 0;
}

}  // namespace

const Command kSweepCommand{
    "sweep",
    "train every combination of some keys' values, and rank them",
    R"(Usage: quern sweep --set KEY=VALUE,VALUE... [--set ...] --out FOLDER
                   [--config FILE] [--train TEXT] [--KEY VALUE ...]

Trains every combination of the values one after another, each in a folder of
its own in --out, such as lr=1e-3,seed=1, with its output beside it in
lr=1e-3,seed=1.log. A combination that fails is listed with its reason, and the
others continue. At the end it prints a table, lowest validation loss first, and
writes FOLDER/report.html. The same command again skips finished runs and
resumes the rest. Ctrl-C and SIGTERM save a checkpoint and stop the sweep.
)",
    run_sweep,
    with_gpus_flag({{"out", "the sweep's folder; it may exist", ""},
                    {"set", "a key and its values, KEY=VALUE,VALUE; several --set make a grid", ""},
                    {"json", "the table as JSON, an object a line", "", true}}),
    {"size", "ctx", "device", "precision", "train", "tokenizer", "steps", "batch", "lr"},
    {"grid", "search"},
    {},
    all_sections()};

}  // namespace quern
