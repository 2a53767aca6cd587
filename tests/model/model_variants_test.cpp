// The model's variants: biases of q, k and v (Qwen2.5), norms of q and k with a head_dim of their
// own (Qwen3), scaled rotary frequencies (Llama 3.1), LayerNorm, GELU and learned positions
// (GPT-2). `quern verify` tests their numbers on tests/fixtures/golden. Tested here: their
// parameters, and that all ways of computing them agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "autograd/tape.h"
#include "model/model_cost.h"
#include "model/positions.h"
#include "model/transformer_lm.h"
#include "nn/arena.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using Floats = std::vector<float>;

constexpr int64_t kB = 2, kT = 12, kVocab = 31;

struct Variant {
  const char* name;
  bool qkv_bias, qk_norm, scaled;
  NormKind norm = NormKind::rms;
  MlpKind mlp = MlpKind::swiglu;
  PositionKind positions = PositionKind::rope;
  bool bias = false;
};

constexpr Variant kVariants[] = {
    {"biased", true, false, false},
    {"normed", false, true, false},
    {"scaled", false, false, true},
    {"all", true, true, true},
    {"gpt2", false, false, false, NormKind::layer, MlpKind::gelu, PositionKind::learned, true},
    {"gpt2 without biases", false, false, false, NormKind::layer, MlpKind::gelu,
     PositionKind::learned},
    {"rotary gelu", true, true, false, NormKind::rms, MlpKind::gelu},
    {"learned swiglu", false, false, false, NormKind::layer, MlpKind::swiglu,
     PositionKind::learned}};

// Grouped queries; with norms, the heads together are wider than the residual stream.
ModelConfig config_of(const Variant& variant) {
  ModelConfig config;
  config.vocab_size = kVocab;
  config.context = 16;
  config.d_model = 48;
  config.d_ff = 40;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = variant.qk_norm ? 16 : 0;
  config.qkv_bias = variant.qkv_bias;
  config.qk_norm = variant.qk_norm;
  config.norm = variant.norm;
  config.mlp = variant.mlp;
  config.positions = variant.positions;
  config.bias = variant.bias;
  if (variant.scaled) config.rope_scaling = {RopeScalingKind::llama3, 4.0, 1.0, 4.0, 16};
  return config;
}

Tensor ids(int64_t step) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < kB * kT; ++i) {
    out.push_back(static_cast<int32_t>((i * i + step * i + 1) % kVocab));
  }
  return from_vector(out, {kB, kT});
}

bool is_vector(const std::string& name) {
  return name.ends_with(".bias") || name.ends_with("q_norm.weight") ||
         name.ends_with("k_norm.weight");
}

// The weights are large enough to matter; biases and norms differ from 0 and 1.
struct VariantModel {
  TransformerLM model;
  ParameterArena arena;
  Tensor tokens = ids(5), targets = ids(7);

  VariantModel(const ModelConfig& config, const ModelOptions& options)
      : model(config, options), arena(model, {.precision = options.precision, .seed = 3}) {
    const Tensor values = arena.exact_values();
    for (const NamedSlice& slice : arena.named_slices()) {
      const Tensor value = arena.slice(values, slice);
      Floats x = value.to_vector<float>();
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = is_vector(slice.name) ? x[i] + 0.5f * std::sin(static_cast<float>(3 * i + 1))
                                     : x[i] * 2.0f;
      }
      copy(value, from_vector(x, slice.shape));
    }
    arena.set_exact_values(values);
  }

  double loss() {
    const NoGrad no_grad;
    return model.loss(tokens, targets).value().item();
  }
  double backward_once() {
    arena.zero_grad();
    const Variable loss = model.loss(tokens, targets);
    backward(loss);
    arena.finish_gradients();
    return loss.value().item();
  }
  Floats gradient(const NamedSlice& slice) const {
    return arena.slice(arena.grads(), slice).to_vector<float>();
  }
};

double norm(const Floats& x) {
  double sum = 0.0;
  for (const float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double relative_distance(Floats a, const Floats& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm(a) / norm(b);
}

std::vector<ModelOptions> every_way(Precision precision) {
  std::vector<ModelOptions> ways;
  for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
    for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
      ModelOptions& options = ways.emplace_back();
      options.precision = precision, options.attention = attention, options.kernels = kernels;
    }
  }
  return ways;
}

TEST(ModelVariants, ParametersAreHuggingFaces) {
  const ModelConfig config = config_of({"all", true, true, true});
  const VariantModel s(config, {});
  const std::string attention = "model.layers.1.self_attn.";
  std::set<std::string> expected = {"q_proj.bias", "k_proj.bias", "v_proj.bias", "q_norm.weight",
                                    "k_norm.weight"};
  int64_t count = 0;
  for (const NamedSlice& slice : s.arena.named_slices()) {
    count += slice.shape.numel();
    if (!slice.name.starts_with(attention)) continue;
    const std::string name = slice.name.substr(attention.size());
    if (!expected.erase(name)) continue;
    const int64_t width = name == "q_proj.bias" ? 96 : name.ends_with("bias") ? 32 : 16;
    EXPECT_EQ(slice.shape, Shape{width}) << name;
  }
  EXPECT_TRUE(expected.empty()) << *expected.begin();
  EXPECT_EQ(count, parameter_count(config));
  for (const Parameter* parameter : s.arena.parameters()) {
    EXPECT_EQ(parameter->group.decay, parameter->shape().ndim() == 2) << parameter->name();
  }
}

TEST(ModelVariants, BiasesStartAt0AndNormsAt1) {
  TransformerLM model(config_of({"all", true, true, true}), {});
  const ParameterArena arena(model, {.seed = 3});
  for (const NamedSlice& slice : arena.named_slices()) {
    if (!is_vector(slice.name)) continue;
    const float start = slice.name.ends_with("bias") ? 0.0f : 1.0f;
    for (const float x : arena.slice(arena.values(), slice).to_vector<float>()) {
      EXPECT_EQ(x, start) << slice.name;
    }
  }
}

TEST(ModelVariants, EveryWayOfComputingGivesTheSameLossAndGradients) {
  for (const Variant& variant : kVariants) {
    const ModelConfig config = config_of(variant);
    VariantModel reference(config, {});
    const double loss = reference.backward_once();
    for (const ModelOptions& options : every_way(Precision::fp32)) {
      VariantModel s(config, options);
      // FP32 sums in another order: the golden cases' reordering was measured at 2e-6.
      EXPECT_NEAR(s.backward_once(), loss, 1e-5) << variant.name;
      for (const NamedSlice& slice : s.arena.named_slices()) {
        EXPECT_LT(relative_distance(s.gradient(slice), reference.gradient(slice)), 2e-5)
            << variant.name << " " << slice.name;
      }
    }
  }
}

// Along its own gradient g a parameter's loss rises by |g|.
TEST(ModelVariants, GradientsOfTheNewParametersAreTheLosss) {
  VariantModel s(config_of({"all", true, true, true}), {});
  s.backward_once();
  for (const NamedSlice& slice : s.arena.named_slices()) {
    // A bias of k shifts all scores of a query equally, except for the rotation and the norm.
    if (!is_vector(slice.name)) continue;
    const Floats g = s.gradient(slice);
    const double length = norm(g);
    ASSERT_GT(length, 1e-3) << slice.name;
    const Tensor value = s.arena.slice(s.arena.values(), slice);
    const Floats start = value.to_vector<float>();
    const auto loss_at = [&](double step) {
      Floats moved = start;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] += static_cast<float>(step / length) * g[i];
      }
      copy(value, from_vector(moved, slice.shape));
      return s.loss();
    };
    // The loss, near 4, is exact to 1e-6. Over a distance of 0.04 that is 3e-5 of a slope, 3 % of
    // the smallest one. The third derivative's share is 1e-4 of the slope.
    const double slope = (loss_at(0.02) - loss_at(-0.02)) / 0.04;
    EXPECT_NEAR(slope / length, 1.0, 0.03) << slice.name << ", |g| = " << length;
    copy(value, from_vector(start, slice.shape));
  }
}

TEST(ModelVariants, UnderBf16LossAndGradientsAreNear) {
  for (const Variant& variant : kVariants) {
    const ModelConfig config = config_of(variant);
    VariantModel wide(config, {});
    const double exact = wide.backward_once();
    for (const ModelOptions& options : every_way(Precision::bf16)) {
      VariantModel s(config, options);
      EXPECT_NEAR(s.backward_once() / exact, 1.0, 0.02) << variant.name;  // the design's tolerances
      for (const NamedSlice& slice : s.arena.named_slices()) {
        EXPECT_LT(relative_distance(s.gradient(slice), wide.gradient(slice)), 0.1)
            << variant.name << " " << slice.name;
      }
    }
  }
}

TEST(ModelVariants, RecomputationGivesTheSameBits) {
  for (const Variant& variant : kVariants) {
    for (ModelOptions options : every_way(Precision::bf16)) {
      options.recompute = Recompute::none;
      VariantModel plain(config_of(variant), options);
      const double loss = plain.backward_once();
      for (const Recompute recompute : {Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
        options.recompute = recompute;
        VariantModel again(config_of(variant), options);
        EXPECT_EQ(again.backward_once(), loss) << variant.name;
        EXPECT_TRUE(again.arena.grads().to_vector<float>() ==
                    plain.arena.grads().to_vector<float>())
            << variant.name;
      }
    }
  }
}

TEST(ModelVariants, DecodingGivesTheLogitsOfTheWhole) {
  for (const Variant& variant : kVariants) {
    VariantModel s(config_of(variant), {});
    const NoGrad no_grad;
    const Floats whole = s.model.logits(s.tokens).value().slice(1, kT - 1, kT).to_vector<float>();
    KvCache cache = s.model.make_cache(kB, 16);
    s.model.decode(s.tokens.slice(1, 0, kT - 2).contiguous(), cache);
    s.model.decode(s.tokens.slice(1, kT - 2, kT - 1).contiguous(), cache);
    const Tensor last = s.model.decode(s.tokens.slice(1, kT - 1, kT).contiguous(), cache);
    // FP32 sums in another order.
    EXPECT_LT(relative_distance(last.to_vector<float>(), whole), 2e-5) << variant.name;
  }
}

TEST(ModelVariants, EachChangesTheLoss) {
  Variant plain{"plain", false, false, false};
  const double loss = VariantModel(config_of(plain), {}).loss();
  for (const Variant& variant : kVariants) {
    EXPECT_GT(std::abs(VariantModel(config_of(variant), {}).loss() - loss), 1e-3) << variant.name;
  }
}

struct EmbeddedPositions : Module {
  Embedding tokens{kVocab, 8, {}};
  LearnedPositions positions{6, 8, {}};
  void declare(ParameterList& list) override {
    list.add("tokens", tokens);
    list.add("positions", positions);
  }
};

// Under a BF16 residual stream too: a sum rounded to BF16 would be off by up to 2^-9 of it.
TEST(ModelVariants, PositionsSumTheirGradientInFp32) {
  constexpr int64_t kRows = 300, kPlaces = 4;
  EmbeddedPositions model;
  ParameterArena arena(model, {Precision::bf16});
  const Tensor dy = uniform({kRows, kPlaces, 8}, 0.0, 1.0).to(DType::bf16);
  const Tensor ids = zeros({kRows, kPlaces}, DType::i32);
  arena.zero_grad();
  for (int pass = 0; pass < 2; ++pass) {
    backward(model.positions.embed(model.tokens, ids, 1, DType::bf16), dy);
  }
  const Floats terms = dy.to(DType::f32).to_vector<float>();
  std::vector<double> expected(6 * 8, 0.0);
  for (size_t i = 0; i < terms.size(); ++i) expected[8 + i % (kPlaces * 8)] += 2.0 * terms[i];
  for (const NamedSlice& slice : arena.named_slices()) {
    if (slice.name != "positions.weight") continue;
    const Floats found = ParameterArena::slice(arena.grads(), slice).to_vector<float>();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]) << i;  // FP32 sums of 300 terms
    }
    return;
  }
  FAIL() << "no gradient of the positions";
}

}  // namespace
}  // namespace quern
