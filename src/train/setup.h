// From a configuration to what a computation needs: the device's Context, and a model with its
// arena.
#pragma once

#include <memory>

#include "nn/arena.h"
#include "nn/transformer_lm.h"
#include "optim/adamw.h"
#include "tensor/context.h"
#include "train/config.h"

namespace quern {

// The device asked for; automatic: the first GPU when the build and the machine have one. Throws
// when it is not there.
Device choose_device(DeviceChoice choice);

// use_gemm_table() of a file. Throws UsageError when it cannot be read, and an Error that names it
// when it is no such table.
bool use_gemm_table_file(const std::string& path);

// A Context of that device, with FP32 products by TF32 under precision = tf32, the GEMM table that
// is configured or shipped, and the CPU's threads set. Throws UsageError for another GPU's table.
std::unique_ptr<Context> make_context(const ComputeSection& compute, uint64_t seed);

// What [optimizer] says of AdamW and clipping, with the twin that [compute] chooses.
AdamWOptions adamw_options(const Config& config);

// A model in memory. Needs a current Context; members are destroyed in the right order.
struct ModelInstance {
  ModelInstance(const ModelConfig& config, const ModelOptions& options, InitScheme init,
                bool training, uint64_t seed);

  TransformerLM model;
  ParameterArena arena;
};

}  // namespace quern
