// `quern memory`: the memory that a model needs, predicted and measured, and the tensors that one
// block saves for its backward.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "bench/table.h"
#include "train/memory_prediction.h"

namespace quern {

template <>
inline constexpr std::array kNamesOf<MemoryPass>{"forward", "step"};

struct MemoryStudy {
  Config config;
  MemoryPass pass = MemoryPass::step;
  std::string device;  // "cuda:0"; "a GPU" for a prediction without a device
  PeakEstimate predicted;
  bool measured = false;      // whether the fields below are valid
  std::string out_of_memory;  // the allocator's message; empty when it fitted
  int64_t peak_bytes = 0;     // as counted by the allocator
  MemoryByCategory by_category{};
  int64_t on_host_bytes = 0;
  MemoryTrace trace;

  // Deviation of the prediction from the measured peak, in percent; NaN without a measurement.
  double deviation() const;
};

// Measuring on the CPU is slow: larger models are only predicted, for a GPU.
inline constexpr int64_t kMostCpuBytes = int64_t{2} << 30;

// Predicts, and measures on the current Context's device unless `predict` is set or the model is
// too large for the CPU; `on_cpu` lifts that limit. Measures two steps with random weights and
// tokens, launched kernel by kernel. Throws UsageError if the vocabulary is not given.
MemoryStudy study_memory(const Config& config, MemoryPass pass, bool predict, bool on_cpu);

// A tensor that a middle block of a model saves for its backward.
struct SavedTensor {
  std::string module;  // path inside the block: "self_attn.qkv_proj"
  std::string op, name;
  std::string inputs;  // shapes of the op's inputs
  int64_t bytes = 0;
};

struct BlockStudy {
  Config config;
  std::string device;
  std::vector<SavedTensor> tensors;  // in the order of the forward
  std::string out_of_memory;         // the allocator's message; then there are no tensors
  int64_t predicted = 0;             // bytes, the sum over all tensors
  int64_t measured() const;
};

// Measures on the current Context's device, on a model of three blocks and at most two sequences.
BlockStudy study_block(const Config& config);

// Compares configurations: a row of predictions and a row of measurements. In tables for people,
// settings (size, ctx, batch, precision, attention, kernels, recompute, residual, moments) outside
// `varying` have no column; the first study's values stand above.
std::string memory_rows(Table& table, const MemoryStudy& study,
                        const std::set<std::string>& varying);

// The tensors that a block saves for its backward, a row each in forward order, and their sum.
std::string block_rows(Table& table, const BlockStudy& study, const std::set<std::string>& varying);

}  // namespace quern
