// Checks every file of a run folder, without changing any.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quern {

struct RunFileCheck {
  std::string file;    // relative to the run folder; a checkpoint is one
  std::string found;   // what it holds: "200 steps, 4 validations"
  std::string damage;  // what is wrong with it; empty: nothing
};

struct RunCheck {
  std::vector<RunFileCheck> files;
  // The newest checkpoint without damage: the one that --resume continues. Relative as above.
  std::optional<std::string> newest_intact;

  int64_t damaged() const;
};

// Checks the configuration with its seal, that the steps of metrics.jsonl follow each other, each
// checkpoint (checksums, the tensors of its model, finite weights and optimizer state, the
// configuration's dimensions, its tokenizer), the marks `best` and `kept`, and the tokenizer. Lists
// the remains of killed processes. Reads every byte of the checkpoints. A checkpoint that the
// training removes meanwhile is left out. Throws when `folder` is no run folder.
RunCheck verify_run(const std::filesystem::path& folder);

}  // namespace quern
