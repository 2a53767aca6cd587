// The folder of a run: config.toml, metrics.jsonl, checkpoints/, samples.txt, tokenizer/ unless its
// tokens are bytes, and source/ with config.json and generation_config.json if its model came from
// a Hugging Face folder.
#pragma once

#include <filesystem>
#include <string>

#include "config/config.h"

namespace quern {

class RunFolder {
 public:
  // A new folder with the resolved configuration in it. An empty path becomes runs/<date>-<time>.
  // Throws when it exists.
  static RunFolder create(const Config& config);
  // An existing one. `path` may also be a checkpoint inside it. Throws when it is neither.
  static RunFolder open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config() const { return path_ / "config.toml"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path tokenizer() const { return path_ / "tokenizer"; }
  std::filesystem::path source() const { return path_ / "source"; }
  std::filesystem::path samples() const { return path_ / "samples.txt"; }
  std::filesystem::path gemm_table() const { return path_ / "gemm_algorithms.txt"; }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// The checkpoint at `path`: itself, or the best one of a run folder (under `best`, if there is one)
// or its latest. Throws when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, bool best);

}  // namespace quern
