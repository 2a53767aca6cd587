// What one training step needs in memory, predicted from the model's dimensions and from what each
// op saves for its backward.
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

// For micro-batches of `batch` sequences of `T` tokens. Library workspaces, scratch memory of
// kernels and the arena's padding are not in it. Throws when batch or T is below 1.
MemoryEstimate predict_memory(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                              int64_t T);

}  // namespace quern
