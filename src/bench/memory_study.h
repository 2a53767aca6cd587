// `quern memory`: what a model needs in memory, predicted and measured, and what one block saves
// for its backward.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "bench/table.h"
#include "train/memory_prediction.h"

namespace quern {

const char* name_of(MemoryPass pass);
// "forward,step". Throws UsageError on an unknown or missing pass, and on one named twice.
std::vector<MemoryPass> parse_passes(const std::string& text);

struct MemoryStudy {
  Config config;
  MemoryPass pass = MemoryPass::step;
  std::string device;  // "cuda:0"; "a GPU" where a prediction is for one that is not there
  PeakEstimate predicted;
  bool measured = false;      // what follows is there
  std::string out_of_memory;  // the allocator's message; empty when it fitted
  int64_t peak_bytes = 0;     // as the allocator counts it
  MemoryByCategory by_category{};
  MemoryTrace trace;

  // Of the prediction from the measured peak, in percent; NaN where nothing was measured.
  double deviation() const;
};

// On the CPU, of which measuring takes time, models above this are predicted alone, for a GPU.
inline constexpr int64_t kMostCpuBytes = int64_t{2} << 30;

// Predicts, and measures on the current Context's device, unless `predict` or the model is too
// large for the CPU: random weights and tokens, launched kernel by kernel; two steps. With `on_cpu`
// no size is too large. Throws UsageError where the vocabulary is not given.
MemoryStudy study_memory(const Config& config, MemoryPass pass, bool predict, bool on_cpu);

// A tensor that a block in the middle of a model saves for its backward.
struct SavedTensor {
  std::string module;  // in the block: "self_attn.qkv_proj"
  std::string op, name;
  std::string inputs;  // shapes of the op's inputs
  int64_t bytes = 0;
};

struct BlockStudy {
  Config config;
  std::string device;
  std::vector<SavedTensor> tensors;  // in the order of the forward
  int64_t predicted = 0;             // bytes, of all together
  int64_t measured() const;
};

// Measured on the current Context's device, on a model of three blocks and at most two sequences.
BlockStudy study_block(const Config& config);

// Configurations beside each other: a row of what was predicted, and one of what was measured. To
// people the settings (size, ctx, batch, precision, attention, kernels, recompute, residual) that
// are not in `varying` have no column, and those of the first study stand above.
std::string memory_rows(Table& table, const MemoryStudy& study,
                        const std::set<std::string>& varying);

// What a block saves for its backward, a row a tensor, in the order of the forward, and their sum.
std::string block_rows(Table& table, const BlockStudy& study);

}  // namespace quern
