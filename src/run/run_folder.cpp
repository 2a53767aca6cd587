#include "run/run_folder.h"

#include <ctime>

#include "base/error.h"
#include "config/config_print.h"
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
  return fs::exists(path / "manifest.json");
}

}  // namespace

RunFolder RunFolder::create(const Config& config) {
  const fs::path path =
      config.run.out.empty() ? fs::path("runs") / timestamp() : fs::path(config.run.out);
  QUERN_CHECK(!fs::exists(path), "run folder ", path.string(),
              " exists already; choose another --out, or continue it with --resume ",
              path.string());
  std::error_code error;
  fs::create_directories(path / "checkpoints", error);
  QUERN_CHECK(!error, "run folder ", path.string(), ": cannot be made: ", error.message());
  RunFolder folder(path);
  save_config(config, folder.config().string());
  return folder;
}

RunFolder RunFolder::open(const fs::path& path) {
  if (is_checkpoint(path))
    return open(fs::absolute(path).lexically_normal().parent_path().parent_path());
  QUERN_CHECK(fs::is_directory(path), path.string(),
              " is not a run folder: there is no such folder");
  QUERN_CHECK(fs::exists(path / "config.toml") || !fs::exists(path / "config.json"), path.string(),
              " is a Hugging Face folder, expected a run folder; make one with `quern import ",
              path.string(), " --out RUN`");
  QUERN_CHECK(fs::exists(path / "config.toml"), path.string(),
              " is not a run folder: it has no config.toml");
  return RunFolder(path);
}

fs::path find_checkpoint(const fs::path& path, bool best) {
  if (is_checkpoint(path)) return path;
  const RunFolder run = RunFolder::open(path);
  if (best) {
    if (const auto found = best_checkpoint(run.checkpoints())) return *found;
  }
  const auto found = latest_checkpoint(run.checkpoints());
  QUERN_CHECK(found, path.string(), " has no checkpoint yet");
  return *found;
}

}  // namespace quern
