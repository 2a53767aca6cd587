// A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)). Llama, Mistral, Qwen and GPT-2
// differ in their norms, MLPs and names.
#pragma once

#include <memory>

#include "model/attention.h"
#include "model/block.h"
#include "model/mlp.h"

namespace quern {

// The names of a block's norms and attention, those of the Hugging Face family; the MLP is "mlp".
struct PreNormNames {
  const char *attention_norm, *mlp_norm;
  AttentionNames attention;
};

class PreNormBlock : public Block {
 public:
  // `name`: of the block's module range, "model.layers.3". config.norm selects the norms.
  PreNormBlock(const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
               std::string name, const PreNormNames& names, std::unique_ptr<Mlp> mlp);

  Residual forward(const Residual& in, const SharedInputs& shared) const override;
  Residual decode(const Residual& in, const SharedInputs& shared, KvCache::Layer& cache,
                  int64_t cache_length) const override;
  KvCache::Layer make_cache(int64_t batch, int64_t capacity) const override;
  double mixing_flops(int64_t context) const override;
  std::optional<BlockWeights> decode_weights() const override;
  void declare(ParameterList& list) override;

 private:
  template <class Attend>
  Residual run(const Residual& in, const SharedInputs& shared, const Attend& attend) const;

  std::string name_;
  PreNormNames names_;
  DType activation_;
  Norm attention_norm_;
  Attention attention_;
  Norm mlp_norm_;
  std::unique_ptr<Mlp> mlp_;
};

}  // namespace quern
