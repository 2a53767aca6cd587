// The folder of a run: config.toml, metrics.jsonl, checkpoints/, samples.txt, tokenizer/ when
// its tokens are not bytes, and source/ when its model came from a Hugging Face folder: that
// folder's config.json and generation_config.json.
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
  // One that is there. `path` may also be a checkpoint inside it. Throws when it is neither.
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

// The checkpoint that `path` means: itself, or of a run folder the best (`best` and there is one)
// or the latest. Throws when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, bool best);

}  // namespace quern
