// The dimensions of a TransformerLM, and its named sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/rope_frequency.h"
#include "nn/options.h"

namespace quern {

using kernels::RopeScaling;  // kernels/common/rope_frequency.h
using kernels::RopeScalingKind;

enum class MlpKind { swiglu, gelu };  // gelu: one projection and GELU's tanh form (GPT-2)
enum class PositionKind { rope, learned };

// A decoder, by default Llama-shaped: token embedding, `layers` pre-norm blocks (RMSNorm, RoPE
// attention, RMSNorm, SwiGLU), final RMSNorm, LM head.
struct ModelConfig {
  int64_t vocab_size = 257;  // V
  int64_t context = 256;     // T, the longest sequence trained on
  int64_t d_model = 256;     // C
  int64_t d_ff = 768;        // F
  int64_t layers = 4;
  int64_t heads = 8;      // H
  int64_t kv_heads = 0;   // Hk; 0 means heads
  int64_t head_dim = 0;   // D; 0 means d_model / heads
  bool tied = false;      // LM head shares the embedding's weight
  bool qkv_bias = false;  // q, k and v have biases (Qwen2.5)
  bool qk_norm = false;   // RMSNorm over each head of q and of k, before RoPE (Qwen3)
  NormKind norm = NormKind::rms;
  MlpKind mlp = MlpKind::swiglu;
  PositionKind positions = PositionKind::rope;
  bool bias = false;  // linear layers (except the head) and LayerNorm have biases (GPT-2)
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};
  double norm_eps = 1e-5;

  int64_t kv_head_count() const { return kv_heads ? kv_heads : heads; }
  int64_t head_size() const { return head_dim ? head_dim : d_model / heads; }
  int64_t q_width() const { return heads * head_size(); }
  int64_t kv_width() const { return kv_head_count() * head_size(); }

  // Throws when a value is not usable; names the key: "d_model is 100, expected a multiple of heads
  // (8)".
  void validate() const;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

inline bool flash_supports(int64_t head_dim) {
  return head_dim % 8 == 0 && head_dim <= 256;
}

// Checks the dimensions against the options, for example that flash attention supports the
// head_dim. Throws with the alternatives.
void validate_options(const ModelConfig& config, const ModelOptions& options);

// For a trained model, whose head_dim is fixed: replaces flash attention by naive where flash does
// not support it, and notes the slower path.
void use_supported_attention(const ModelConfig& config, ModelOptions& options);

// Named sizes: toy, shakespeare-cpu, shakespeare-gpu, small, medium, large, xl, 2.7B, 10B, 0.5B,
// 1.5B, gpt2 and gpt2-medium. Sets d_model, d_ff, layers, heads, kv_heads, norm, mlp, positions and
// bias, clears head_dim, and sets vocab_size, tied and context where the size fixes them (0.5B and
// 1.5B but for the context, gpt2, gpt2-medium); keeps the rest. Throws on an unknown name.
void apply_size(ModelConfig& config, const std::string& size);
std::vector<std::string> size_names();

// Rows of logits that the fused head and loss hold at once: equal parts of the tokens, in multiples
// of 128 rows. For each part, the head's weight is read twice and its gradient read and written: 12
// bytes for each of `width` x vocab_size elements, beside 10 for each BF16 logit. So the number of
// rows grows with the width: 6 x width in BF16, within 1.25 to 2.5 GiB of logits. In FP32, where
// products need scratch memory for all rows as well, 512 MiB of logits fix the number, independent
// of the width.
int64_t head_chunk_rows(int64_t tokens, int64_t vocab_size, int64_t width, int64_t bytes_per_logit);

}  // namespace quern
