// Parameters and FLOPs of a model, from its parameter table. Needs no memory.
#pragma once

#include <cstdint>

#include "model/model_config.h"
#include "nn/parameter_table.h"

namespace quern {

// The table of a TransformerLM of these dimensions. Throws when it cannot be built.
ParameterTable parameter_table(const ModelConfig& config);

// Weights of the model, each counted once (a tied head is the embedding).
int64_t parameter_count(const ModelConfig& config);

// Floating-point operations of one training step per token: 3 (1 for the forward, 2 for the
// backward) times (2 x parameters + causal attention's 2 * 2 * T * H * D * layers / 2). An untied
// embedding is a look-up and does not count.
double flops_per_token(const ModelConfig& config, int64_t context);

}  // namespace quern
