// Checkpoints of a run: folders checkpoints/step_NNNNNNNN with
//   model.safetensors      weights, Hugging Face names
//   optimizer.safetensors  moments
//   gemm_algorithms.txt    the GEMM table in use, of a GPU
//   manifest.json          format version, step, sizes and checksums, and the trainer's state
// A checkpoint is complete or not there: it is written as step_NNNNNNNN.tmp, fsynced and renamed.
// Every `folder` below is the run's `checkpoints` folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace quern {

struct CheckpointContents {
  int64_t step = 0;
  std::vector<TensorView> weights;
  std::vector<TensorView> moments;
  std::string state_json = "{}";     // whatever else the trainer needs to continue, as JSON
  std::string gemm_algorithms = {};  // text; empty: no such file
};

struct Checkpoint {
  std::filesystem::path path;
  int64_t step = 0;
  SafetensorsFile weights;
  SafetensorsFile moments;
  std::string state_json;  // the same JSON value that was written
  std::string gemm_algorithms;
};

// Writes folder/step_N, replacing one that is there, and removes half-written ones that an
// interrupted run left. Returns its path. Throws naming the path when the disk is full; then
// nothing is left of it.
std::filesystem::path write_checkpoint(const std::filesystem::path& folder,
                                       const CheckpointContents& contents);

// Puts another state into a checkpoint; the rest stays. As write_checkpoint, all or nothing.
void rewrite_checkpoint_state(const std::filesystem::path& path, const std::string& state_json);

// Reads every byte and compares with the manifest. Throws naming the file, what was found and what
// was expected.
Checkpoint open_checkpoint(const std::filesystem::path& path);

// The state_json alone; the files of tensors are neither read nor verified.
std::string read_checkpoint_state(const std::filesystem::path& path);

std::vector<int64_t> checkpoint_steps(const std::filesystem::path& folder);  // ascending
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// The best by validation loss: its name stands in folder/best.
void mark_best(const std::filesystem::path& folder, int64_t step);
std::optional<std::filesystem::path> best_checkpoint(const std::filesystem::path& folder);

// Never rotated away: its name and the reason stand in folder/kept.
void mark_kept(const std::filesystem::path& folder, int64_t step, const std::string& reason);

// Removes the checkpoints after `step`, and the mark of the best when it is one of them. Returns
// how many there were.
int64_t remove_checkpoints_after(const std::filesystem::path& folder, int64_t step);

// Removes all but the newest keep_last checkpoints, the best and the kept. keep_last >= 1.
void rotate_checkpoints(const std::filesystem::path& folder, int64_t keep_last);

}  // namespace quern
