// The folder of a run: config.toml, metrics.jsonl, checkpoints/, samples.txt, tokenizer/ unless its
// tokens are bytes, and source/ with config.json and generation_config.json if its model came from
// a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "config/config.h"
#include "io/file_lock.h"

namespace quern {

class RunFolder {
 public:
  // A new folder with the resolved configuration in it. An empty path becomes runs/<date>-<time>.
  // Throws when it holds more than a process killed before writing the configuration leaves.
  static RunFolder create(const Config& config);
  // An existing one. `path` may also be a checkpoint inside it. Throws when it is neither; `hint`
  // ends the message about a missing folder.
  static RunFolder open(const std::filesystem::path& path, const std::string& hint = "");

  // Locks the folder until destruction, and puts checkpoints back that a crash left half replaced.
  // Throws when another process trains in it. create() locks it, too.
  void lock();
  // Drops the samples after `step` from samples.txt. Returns whether it has one of `step`.
  bool keep_samples_until(int64_t step) const;
  // Throws when path() is no longer the folder of the start: deleted, or unmounted.
  void check_there() const;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config() const { return path_ / "config.toml"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path tokenizer() const { return path_ / "tokenizer"; }
  std::filesystem::path source() const { return path_ / "source"; }
  std::filesystem::path samples() const { return path_ / "samples.txt"; }
  std::filesystem::path gemm_table() const { return path_ / "gemm_algorithms.txt"; }

 private:
  explicit RunFolder(std::filesystem::path path);
  std::filesystem::path path_;
  std::pair<uint64_t, uint64_t> identity_;  // device and inode
  std::optional<FileLock> lock_;
};

// A sample as samples.txt has it: the line "--- step 12", then its text, where a line that looks
// like this one gets a space before it.
std::string sample_record(int64_t step, std::string_view text);
// The step of a sample's first line; none: not such a line.
std::optional<int64_t> sample_step(std::string_view line);

// The run folder of a checkpoint in one, whether or not it has a configuration; other paths
// unchanged.
std::filesystem::path run_of(const std::filesystem::path& path);

// For --resume: the checkpoint `path`, or the newest whole one of the run folder `path`. Damaged
// newer ones become step_N.damaged, and `warn` gets a sentence on each. Throws when there is none;
// for a damaged checkpoint that was chosen, the message names the whole one before it.
std::filesystem::path checkpoint_to_resume(const std::filesystem::path& path,
                                           const std::function<void(const std::string&)>& warn);

// Whether there is one: `path` is a checkpoint or a run folder that has any, also half replaced.
bool has_checkpoint(const std::filesystem::path& path);

// The checkpoint at `path`: itself, or the best one of a run folder (under `best`, if there is one)
// or its latest. Throws when there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, bool best);

}  // namespace quern
