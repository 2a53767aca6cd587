// Checkpoints of a run: folders checkpoints/step_NNNNNNNN with
//   model.safetensors      weights, Hugging Face names
//   optimizer.safetensors  moments
//                          several ranks write a file each in place of either, and the first
//                          rank their indices: safetensors_shards.h
//   gemm_algorithms.txt    the GEMM table in use, of a GPU
//   manifest.json          format version, step, sizes and checksums, and the trainer's state
// A checkpoint is complete or absent: it is written as step_NNNNNNNN.tmp, fsynced and renamed.
// Every `folder` below is the run's `checkpoints` folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dist/rank_team.h"
#include "io/safetensors_shards.h"

namespace quern {

// The number of this rank's file among the files of all ranks.
struct FileNumber {
  std::optional<size_t> number = 0;  // empty: none
  size_t count = 1;
};

struct CheckpointContents {
  int64_t step = 0;
  std::vector<TensorView> weights;  // of this rank's file
  std::vector<TensorView> moments;
  std::string state_json = "{}";     // the trainer's remaining state, as JSON
  std::string gemm_algorithms = {};  // text; empty: no such file
  FileNumber weights_file = {}, moments_file = {};
};

struct Checkpoint {
  std::filesystem::path path;
  int64_t step = 0;
  SafetensorsShards weights;
  SafetensorsShards moments;
  std::string state_json;  // the same JSON value that was written
  std::string gemm_algorithms;
};

// Writes folder/step_N, replacing an existing one, and removes incomplete ones of an interrupted
// run. Returns its path. When the disk is full it throws with the path, on every rank, and leaves
// nothing of the new checkpoint behind. Every rank of `team` calls this; the folder must be one
// that their machines share. State and algorithms are the leading rank's.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder,
                                       const CheckpointContents& contents,
                                       const RankTeam& team = RankTeam(nullptr));

// Restores checkpoints that a crash left between the two renames of replace_directory (step_N.old).
// Only the training process may call it.
void restore_replaced_checkpoints(const std::filesystem::path& folder);

// Replaces the state in a checkpoint and keeps the rest. As write_checkpoint, all or nothing.
void rewrite_checkpoint_state(const std::filesystem::path& path, const std::string& state_json);

// Reads every byte and compares with the manifest. Throws with the file, the value found and the
// value expected.
Checkpoint open_checkpoint(const std::filesystem::path& path);

// A description of the damage to its content; empty if there is none. Throws when a file exists but
// cannot be read, which is no damage.
std::optional<std::string> checkpoint_damage(const std::filesystem::path& path);

// Only the state_json; the tensor files are neither read nor verified.
std::string read_checkpoint_state(const std::filesystem::path& path);

std::vector<int64_t> checkpoint_steps(const std::filesystem::path& folder);  // ascending
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// Marks the best checkpoint by validation loss: folder/best has its name.
void mark_best(const std::filesystem::path& folder, int64_t step);
std::optional<std::filesystem::path> best_checkpoint(const std::filesystem::path& folder);

// Exempts a checkpoint from rotation: folder/kept has its name and the reason. Going back before it
// ends that.
void mark_kept(const std::filesystem::path& folder, int64_t step, const std::string& reason);
// Throws when a kept checkpoint is missing.
std::vector<std::filesystem::path> kept_checkpoints(const std::filesystem::path& folder);

// The remains of interrupted processes, by name: checkpoints half written, half replaced or set
// aside.
std::vector<std::filesystem::path> unfinished_checkpoints(const std::filesystem::path& folder);

// Sets the checkpoints after `step` aside, as step_N.later, and removes their marks: that of the
// best and those of kept ones. Returns their number. remove_later_checkpoints removes what was set
// aside, and returns a sentence on each that cannot be removed.
int64_t set_aside_checkpoints_after(const std::filesystem::path& folder, int64_t step);
std::vector<std::string> remove_later_checkpoints(const std::filesystem::path& folder);

// Removes all checkpoints but the newest keep_last whole ones, those after them, the best and the
// kept ones. Whole: the manifest is readable and the files have its sizes. keep_last >= 1. Returns
// a sentence on each that cannot be removed.
std::vector<std::string> rotate_checkpoints(const std::filesystem::path& folder, int64_t keep_last);

}  // namespace quern
