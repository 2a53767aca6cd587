#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/round_up.h"
#include "base/slow_path.h"

namespace quern {

namespace {

struct NamedSize {
  const char* name;
  int64_t d_model, d_ff, layers, heads, kv_heads;
  int64_t vocab_size;   // 0: the size sets neither it nor `tied`
  int64_t context = 0;  // of GPT-2 sizes; 0: the size does not set it
};

constexpr NamedSize kSizes[] = {
    {"toy", 256, 768, 4, 8, 0, 0},
    {"shakespeare-cpu", 128, 344, 4, 4, 0, 0},
    {"shakespeare-gpu", 384, 1024, 6, 6, 0, 0},
    {"small", 768, 3072, 12, 12, 0, 0},
    {"medium", 1024, 4096, 24, 16, 0, 0},
    {"large", 1280, 5120, 36, 20, 0, 0},
    {"xl", 1600, 6400, 48, 25, 0, 0},
    {"2.7B", 2560, 10240, 32, 32, 0, 0},
    {"10B", 4608, 12288, 50, 36, 0, 0},
    {"0.5B", 896, 4864, 24, 14, 2, 151936},
    {"1.5B", 1536, 8960, 28, 12, 2, 151936},
    {"gpt2", 768, 3072, 12, 12, 0, 50257, 1024},
    {"gpt2-medium", 1024, 4096, 24, 16, 0, 50257, 1024},
};

void check_scaling(const RopeScaling& s) {
  QUERN_CHECK(std::isfinite(s.factor) && s.factor >= 1, "rope_factor is ", s.factor,
              ", expected at least 1");
  QUERN_CHECK(s.kind != RopeScalingKind::none || s.factor == 1, "rope_factor is ", s.factor,
              ", expected rope_scaling = linear or llama3 beside it");
  if (s.kind != RopeScalingKind::llama3) return;
  QUERN_CHECK(std::isfinite(s.low_freq_factor) && s.low_freq_factor > 0, "rope_low_freq_factor is ",
              s.low_freq_factor, ", expected above 0");
  QUERN_CHECK(std::isfinite(s.high_freq_factor) && s.high_freq_factor > s.low_freq_factor,
              "rope_high_freq_factor is ", s.high_freq_factor,
              ", expected above rope_low_freq_factor (", s.low_freq_factor, ")");
  QUERN_CHECK(s.original_context >= 1, "rope_original_ctx is ", s.original_context,
              ", expected at least 1");
}

void check_positive(const char* key, int64_t value) {
  QUERN_CHECK(value >= 1, key, " is ", value, ", expected at least 1");
}

}  // namespace

void ModelConfig::validate() const {
  check_positive("vocab", vocab_size);
  check_positive("ctx", context);
  check_positive("d_model", d_model);
  check_positive("d_ff", d_ff);
  check_positive("layers", layers);
  check_positive("heads", heads);
  QUERN_CHECK(kv_heads >= 0, "kv_heads is ", kv_heads, ", expected 0 (as many as heads) or more");
  QUERN_CHECK(heads % kv_head_count() == 0, "heads is ", heads,
              ", expected a multiple of kv_heads (", kv_heads, ")");
  QUERN_CHECK(head_dim >= 0, "head_dim is ", head_dim, ", expected 0 (d_model / heads) or more");
  QUERN_CHECK(head_dim > 0 || d_model % heads == 0, "d_model is ", d_model,
              ", expected a multiple of heads (", heads, "), or head_dim given");
  QUERN_CHECK(positions != PositionKind::rope || head_size() % 2 == 0, "head_dim is ", head_size(),
              ", expected an even number: rotary embedding turns pairs");
  QUERN_CHECK(!bias || mlp == MlpKind::gelu,
              "bias is true, expected false with mlp = swiglu, whose projections have none");
  QUERN_CHECK(std::isfinite(rope_theta) && rope_theta > 0, "rope_theta is ", rope_theta,
              ", expected above 0");
  check_scaling(rope_scaling);
  QUERN_CHECK(std::isfinite(norm_eps) && norm_eps >= 0, "norm_eps is ", norm_eps,
              ", expected at least 0");
}

void validate_options(const ModelConfig& config, const ModelOptions& options) {
  const int64_t D = config.head_size();
  QUERN_CHECK(options.attention != AttentionKind::flash || flash_supports(D), "head_dim is ", D,
              ", which attention = flash does not support (multiples of 8 up to 256): choose ",
              "such a head_dim, or attention = naive");
  QUERN_CHECK(options.segment >= 1, "segment is ", options.segment,
              ", expected the number of blocks recomputed together, at least 1");
  QUERN_CHECK(
      options.offload != Offload::optimizer || has_bf16_activations(options.precision),
      "offload is optimizer, which needs precision = bf16 or fp8: otherwise every op reads the "
      "weights that the optimizer updates; choose offload = moments");
  if (!options.offload_activations || options.recompute == Recompute::blocks) return;
  QUERN_CHECK(options.kernels == KernelKind::fused,
              "offload_activations with kernels = naive needs recompute = blocks: only fused ops "
              "move what they keep to the host");
  QUERN_CHECK(config.mlp == MlpKind::swiglu || options.precision != Precision::fp8,
              "offload_activations with mlp = gelu and precision = fp8 needs recompute = blocks: "
              "that MLP is not one op in FP8");
}

void use_supported_attention(const ModelConfig& config, ModelOptions& options) {
  const int64_t D = config.head_size();
  if (options.attention != AttentionKind::flash || flash_supports(D)) return;
  options.attention = AttentionKind::naive;
  note_slow_path(cat("attention with head_dim ", D), "flash supports multiples of 8 up to 256");
}

void apply_size(ModelConfig& config, const std::string& size) {
  for (const NamedSize& s : kSizes) {
    if (size != s.name) continue;
    config.d_model = s.d_model;
    config.d_ff = s.d_ff;
    config.layers = s.layers;
    config.heads = s.heads;
    config.kv_heads = s.kv_heads;
    config.head_dim = 0;
    const bool gpt2 = s.context > 0;
    config.norm = gpt2 ? NormKind::layer : NormKind::rms;
    config.mlp = gpt2 ? MlpKind::gelu : MlpKind::swiglu;
    config.positions = gpt2 ? PositionKind::learned : PositionKind::rope;
    config.bias = gpt2;
    if (gpt2) config.context = s.context;
    if (s.vocab_size) {
      config.vocab_size = s.vocab_size;
      config.tied = true;
    }
    return;
  }
  std::string known;
  for (const NamedSize& s : kSizes) known += (known.empty() ? "" : ", ") + std::string(s.name);
  fail(cat("size is \"", size, "\", expected one of ", known));
}

std::vector<std::string> size_names() {
  std::vector<std::string> names;
  for (const NamedSize& s : kSizes) names.emplace_back(s.name);
  return names;
}

int64_t head_chunk_rows(int64_t tokens, int64_t vocab_size, int64_t width,
                        int64_t bytes_per_logit) {
  constexpr int64_t kMiB = int64_t{1} << 20, kRowsOfWidth = 6, kTile = 128;
  const bool fp32 = bytes_per_logit == 4;
  const int64_t least = (fp32 ? 512 : 1280) * kMiB, most = fp32 ? least : 2 * least;
  const auto tiles_in = [&](int64_t bytes) {
    return bytes / (kTile * vocab_size * bytes_per_logit);
  };
  const int64_t wanted =
      std::clamp(ceil_div(kRowsOfWidth * width, kTile), tiles_in(least), tiles_in(most));
  const int64_t tiles = std::max<int64_t>(1, ceil_div(tokens, kTile));
  return kTile * ceil_div(tiles, ceil_div(tiles, std::max<int64_t>(1, wanted)));
}

}  // namespace quern
