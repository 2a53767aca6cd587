// What a model needs in memory, predicted from its dimensions and from what each op saves for its
// backward.
#pragma once

#include <cstdint>

#include "nn/model_config.h"
#include "nn/options.h"

namespace quern {

// Bytes. A whole step's peak is at the start of the backward, when every block's activations and
// the head's logits live at once.
struct MemoryEstimate {
  int64_t parameters = 0;   // FP32 master weights
  int64_t gradients = 0;    // FP32
  int64_t moments = 0;      // AdamW's two, FP32
  int64_t copies = 0;       // BF16 compute copies, under Precision::bf16
  int64_t activations = 0;  // saved by all blocks and the final norm for the backward
  int64_t logits = 0;       // LM head and cross-entropy
  int64_t transient = 0;    // what a block's backward holds beyond them, recomputed blocks included

  int64_t state() const { return parameters + gradients + moments + copies; }
  // The logits are freed before the first block's backward runs, so only the larger one counts.
  int64_t total() const {
    return state() + activations + (logits > transient ? logits : transient);
  }
};

// For micro-batches of `batch` sequences of `T` tokens. What a GPU's matrix library needs and the
// arena's padding are not in it: see predict_peak. Throws when batch or T is below 1.
MemoryEstimate predict_memory(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                              int64_t T);

// forward: the loss without a tape, a model without gradients and moments. step: forward, backward,
// clipping and AdamW.
enum class MemoryPass { forward, step };

// What a device adds.
struct MemoryTarget {
  bool split_products = false;    // FP32 products are cut in BF16 parts (kernels::Gemm::split)
  int64_t library_workspace = 0;  // bytes
};

// A data centre's GPU, which need not be there.
MemoryTarget hopper_target();
// The current Context's device.
MemoryTarget current_target();

// Bytes in use at the moment when most are, by what they are for.
struct PeakEstimate {
  int64_t parameters = 0;   // master weights and BF16 copies, the arena's padding included
  int64_t gradients = 0;    // of parameters
  int64_t optimizer = 0;    // AdamW's moments
  int64_t activations = 0;  // made in the forward, kept for the backward
  int64_t workspace = 0;    // scratch memory of kernels, the library's workspace
  int64_t other = 0;        // activations not kept, gradients of activations, batches

  int64_t total() const {
    return parameters + gradients + optimizer + activations + workspace + other;
  }
};

// The peak of a pass as the allocator counts it, within 5 %. Throws as predict_memory does.
PeakEstimate predict_peak(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                          int64_t T, MemoryPass pass, const MemoryTarget& target);

// Elements of a parameter arena (nn/arena.h) of such a model, its padding included.
int64_t arena_elements(const ModelConfig& config);

}  // namespace quern
