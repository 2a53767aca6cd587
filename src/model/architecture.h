// The parts of a TransformerLM: its kinds of block, positions and norm, with their names.
#pragma once

#include <memory>
#include <string>

#include "model/block.h"
#include "model/model_config.h"
#include "model/positions.h"
#include "nn/init.h"
#include "nn/norm.h"

namespace quern {

// The kinds that config.positions and config.norm name. `name`: of the norm's module range.
std::unique_ptr<Positions> make_positions(const ModelConfig& config);
std::unique_ptr<Norm> make_norm(const ModelConfig& config, const ModelOptions& options,
                                const char* name);

struct Architecture {
  // Module names as in the Hugging Face family; the head is lm_head.
  const char* embedding;
  const char* positions;
  const char* blocks;  // block 3 is blocks.3
  const char* norm;    // the last one

  // `name`: of the block's module range.
  std::unique_ptr<Block> (*make_block)(const ModelConfig&, const ModelOptions&, const ModelInit&,
                                       std::string name);
  std::unique_ptr<Positions> (*make_positions)(const ModelConfig&) = quern::make_positions;
  std::unique_ptr<Norm> (*make_norm)(const ModelConfig&, const ModelOptions&,
                                     const char* name) = quern::make_norm;
};

// kLlama: RMSNorm, RoPE, SwiGLU, no biases but those of q, k and v. kGpt2: every other choice of
// norm, mlp, positions and bias.
extern const Architecture kLlama, kGpt2;
const Architecture& architecture_of(const ModelConfig& config);

}  // namespace quern
