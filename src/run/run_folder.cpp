#include "run/run_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/shell_word.h"
#include "config/config_print.h"
#include "io/atomic_file.h"
#include "io/folder.h"
#include "io/python_line.h"
#include "io/small_file.h"
#include "run/checkpoint.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

bool is_checkpoint(const fs::path& path) {
  return is_there(path / "manifest.json");
}

// Whether a folder holds no more than create() makes before config.toml.
bool is_unused(const fs::path& path) {
  std::error_code error;
  for (const fs::path& entry : entries_of(path, error)) {
    const fs::path name = entry.filename();
    if (name == ".lock" || name == "config.toml.tmp") continue;
    if (name != "checkpoints" || !entries_of(entry, error).empty() || error) return false;
  }
  return !error;
}

// ", did you mean runs/a?" with the newest run in the folder; empty if there is none.
std::string newest_run_in(const fs::path& folder) {
  std::pair newest{fs::file_time_type::min(), fs::path()};
  std::error_code error;
  for (const fs::path& run : entries_of(folder, error)) {
    const auto time = fs::last_write_time(run / "config.toml", error);
    if (!error) newest = std::max(newest, {time, run});
  }
  return newest.second.empty() ? "" : cat(", did you mean ", newest.second.string(), "?");
}

std::pair<uint64_t, uint64_t> identity_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

}  // namespace

RunFolder::RunFolder(fs::path path) : path_(std::move(path)), identity_(identity_of(path_)) {}

void RunFolder::lock() {
  lock_.emplace(path_ / ".lock", cat("another process is training in ", path_.string()));
  restore_replaced_checkpoints(checkpoints());
}

std::string sample_record(int64_t step, std::string_view text) {
  std::string record = cat("--- step ", step, "\n");
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    record.append(sample_step(line) ? " " : "").append(line).append("\n");
    begin = end + 1;
  }
  return record;
}

std::optional<int64_t> sample_step(std::string_view line) {
  constexpr std::string_view kMark = "--- step ";
  return line.starts_with(kMark) ? parse_number<int64_t>(line.substr(kMark.size())) : std::nullopt;
}

bool RunFolder::keep_samples_until(int64_t step) const {
  const std::string text = read_if_there(samples()).value_or("");
  bool there = false;
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    const std::optional<int64_t> of = sample_step(std::string_view(text).substr(line, end - line));
    there = there || of == step;
    if (of > step) {
      write_file_atomically(samples(), text.substr(0, line));
      break;
    }
    line = end + 1;
  }
  return there;
}

void RunFolder::check_there() const {
  QUERN_CHECK(identity_of(path_) == identity_, "run folder ", path_.string(),
              " is gone or another one; was it deleted or unmounted? Nothing more is saved");
}

RunFolder RunFolder::create(const Config& config) {
  const fs::path path =
      config.run.out.empty() ? fs::path("runs") / timestamp() : fs::path(config.run.out);
  std::error_code error, ignored;
  QUERN_CHECK(!fs::exists(fs::symlink_status(path, ignored)) || fs::is_directory(path, ignored),
              "run folder ", path.string(),
              ": is a file or a link to nothing, expected a new name");
  create_folder(path, error);
  const auto check_unused = [&] {
    QUERN_CHECK(error || is_unused(path), "run folder ", path.string(),
                " exists already; choose another --out, or continue it with --resume ",
                shell_word(path.string()));
  };
  check_unused();
  if (!error) create_folder(path / "checkpoints", error);
  QUERN_CHECK(!error, "run folder ", path.string(), ": cannot be made: ", error.message());
  RunFolder folder(path);
  folder.lock();
  check_unused();  // another process may have come first
  sync_directory(path.parent_path());
  save_config(config, folder.config().string());
  return folder;
}

RunFolder RunFolder::open(const fs::path& path, const std::string& hint) {
  if (is_checkpoint(path)) return open(run_of(path));
  QUERN_CHECK(!fs::is_regular_file(path), path.string(), " is a file, expected a run folder");
  QUERN_CHECK(fs::is_directory(path), path.string(),
              " is not a run folder: there is no such folder", hint);
  QUERN_CHECK(fs::exists(path / "config.toml") || !fs::exists(path / "config.json"), path.string(),
              " is a Hugging Face folder, expected a run folder; make one with `quern import ",
              path.string(), " --out RUN`");
  QUERN_CHECK(fs::exists(path / "config.toml"), path.string(),
              " is not a run folder: it has no config.toml", newest_run_in(path));
  return RunFolder(path);
}

fs::path run_of(const fs::path& path) {
  if (!is_checkpoint(path)) return path;
  return without_slash(fs::absolute(path).lexically_normal()).parent_path().parent_path();
}

fs::path checkpoint_to_resume(const fs::path& path,
                              const std::function<void(const std::string&)>& warn) {
  const fs::path newest = find_checkpoint(path, false);
  const std::optional<std::string> damage = checkpoint_damage(newest);
  if (!damage) return newest;
  const fs::path folder = newest.parent_path();
  std::vector<std::pair<fs::path, std::string>> damaged{{newest, *damage}};
  const std::vector<int64_t> steps = checkpoint_steps(folder);
  const auto of_newest =
      std::ranges::find(steps, newest, [&](int64_t step) { return checkpoint_path(folder, step); });
  if (of_newest == steps.end()) fail(*damage);  // a copy under another name
  for (auto step = std::make_reverse_iterator(of_newest); step != steps.rend(); ++step) {
    const fs::path older = checkpoint_path(folder, *step);
    if (const auto why = checkpoint_damage(older)) {
      damaged.emplace_back(older, *why);
      continue;
    }
    QUERN_CHECK(!is_checkpoint(path), *damage, "; the newest whole checkpoint before it is ",
                older.string());
    for (const auto& [bad, reason] : damaged) {
      const fs::path aside = fs::path(bad) += ".damaged";
      replace_directory(bad, aside);
      warn(cat(reason, "; going on from ", older.string(), ", and the damaged checkpoint is now ",
               aside.string()));
    }
    return older;
  }
  fail(*damage);
}

bool has_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) return true;
  RunFolder run = RunFolder::open(path);
  run.lock();
  return latest_checkpoint(run.checkpoints()).has_value();
}

fs::path find_checkpoint(const fs::path& path, bool best) {
  if (is_checkpoint(path)) return without_slash(path);
  const RunFolder run = RunFolder::open(path, hub_hint(path.string(), HubKind::model));
  if (best) {
    if (const auto found = best_checkpoint(run.checkpoints())) return *found;
  }
  const auto found = latest_checkpoint(run.checkpoints());
  QUERN_CHECK(found, path.string(), " has no checkpoint yet");
  return *found;
}

}  // namespace quern
