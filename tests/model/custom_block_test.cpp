// The block that docs/adding_a_block.md adds, in one file: it trains, decodes and is in the
// parameter table.
#include <gtest/gtest.h>

#include <string>

#include "autograd/ops/binary.h"
#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "generate/decoder.h"
#include "model/attention.h"
#include "model/pre_norm_block.h"
#include "model/transformer_lm.h"
#include "nn/arena.h"
#include "nn/rms_norm.h"
#include "optim/adamw.h"
#include "support/greedy_reference.h"
#include "support/page.h"
#include "tensor/context.h"
#include "tensor/factory.h"

namespace quern {
namespace {

// x + attention(norm(x)) + down(relu(up(norm(x)))): both parts read one norm.
class ParallelBlock : public Block {
 public:
  ParallelBlock(const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
                std::string name)
      : name_(std::move(name)),
        activation_(options.activation_type()),
        norm_(config.d_model, config.norm_eps, options, "ln"),
        attention_(config, options, init),
        up_(config.d_model, config.d_ff, init.projection(config.d_model, config.d_ff)),
        down_(config.d_ff, config.d_model, init.residual(config.d_ff, config.d_model)) {}

  void declare(ParameterList& list) override {
    list.add("ln", norm_);
    list.add("attn", attention_);
    list.add("mlp.up", up_);
    list.add("mlp.down", down_);
  }

  Residual forward(const Residual& in, const SharedInputs& shared) const override {
    return run(in, [&](const Variable& h) { return attention_(h, shared.rope); });
  }

  Residual decode(const Residual& in, const SharedInputs& shared, KvCache::Layer& cache,
                  int64_t cache_length) const override {
    return run(in, [&](const Variable& h) {
      return attention_.decode(h, shared.rope, cache, cache_length);
    });
  }

  KvCache::Layer make_cache(int64_t batch, int64_t capacity) const override {
    return attention_.make_cache(batch, capacity, activation_);
  }

  double mixing_flops(int64_t context) const override { return attention_.mixing_flops(context); }

 private:
  template <class Attend>
  Residual run(const Residual& in, const Attend& attend) const {
    const RangeScope range(RangeKind::module, name_.c_str());
    const auto [x, h] = add_and_norm(norm_, in, activation_);
    return {x, add(attend(h), down_("down", relu(up_("up", h))))};
  }

  std::string name_;
  DType activation_;
  RMSNorm norm_;
  Attention attention_;
  Linear up_;    // C -> F
  Linear down_;  // F -> C
};

const Architecture kParallel = {
    .embedding = "embed",
    .positions = "positions",
    .blocks = "blocks",
    .norm = "norm",
    .make_block = [](const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
                     std::string name) -> std::unique_ptr<Block> {
      return std::make_unique<ParallelBlock>(config, options, init, std::move(name));
    },
    .make_positions = [](const ModelConfig&) { return std::make_unique<Positions>(); },
};

// down(relu(up(x))), the MLP of a pre-norm block.
class ReluMlp : public Mlp {
 public:
  ReluMlp(const ModelConfig& config, const ModelInit& init)
      : up_(config.d_model, config.d_ff, init.projection(config.d_model, config.d_ff)),
        down_(config.d_ff, config.d_model, init.residual(config.d_ff, config.d_model)) {}

  Variable forward(const Variable& x) const override { return down_(relu(up_(x))); }

  void declare(ParameterList& list) override {
    list.add("up", up_);
    list.add("down", down_);
  }

 private:
  Linear up_, down_;
};

const Architecture kRelu = {
    .embedding = "embed",
    .positions = "positions",
    .blocks = "blocks",
    .norm = "norm",
    .make_block = [](const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
                     std::string name) -> std::unique_ptr<Block> {
      const PreNormNames names{"ln_1", "ln_2", kLlamaAttention};
      return std::make_unique<PreNormBlock>(config, options, init, std::move(name), names,
                                            std::make_unique<ReluMlp>(config, init));
    },
};

ModelConfig tiny() {
  ModelConfig config;
  config.vocab_size = 19;
  config.context = 16;
  config.d_model = 32;
  config.d_ff = 48;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  return config;
}

struct Instance {
  explicit Instance(const ModelOptions& options, const Architecture& architecture = kParallel)
      : model(tiny(), options, InitScheme::normal, architecture),
        arena(model, {options.precision, true, 3}) {}

  TransformerLM model;
  ParameterArena arena;
};

// Sixteen tokens that repeat every five.
Tensor tokens_from(int32_t first) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 16; ++i) tokens.push_back((first + i) % 5);
  return from_vector(tokens, {1, 16});
}

std::vector<double> losses(const ModelOptions& options, int steps,
                           const Architecture& architecture = kParallel) {
  Instance s(options, architecture);
  AdamW optimizer(s.arena, {});
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    s.arena.zero_grad();
    const Variable loss = s.model.loss(tokens_from(0), tokens_from(1));
    backward(loss);
    optimizer.step(0.01);
    losses.push_back(loss.value().item());
  }
  return losses;
}

TEST(CustomBlock, IsInTheParameterTable) {
  TransformerLM model(tiny(), {}, InitScheme::normal, kParallel);
  const ParameterTable table(model);
  EXPECT_EQ(table.block_count(), 2u);
  const ParameterEntry* up = table.find("blocks.1.mlp.up.weight");
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->shape, (Shape{48, 32}));
  EXPECT_EQ(up->block, 1);
  EXPECT_EQ(table.entries().front().name, "embed.weight");
  EXPECT_DOUBLE_EQ(model.mixing_flops(16), 2 * 2.0 * 16 * 32);
}

TEST(CustomBlock, LearnsTheSameInEveryMode) {
  ModelOptions naive, blocks;
  naive.kernels = KernelKind::naive;
  naive.attention = AttentionKind::naive;
  blocks.recompute = Recompute::blocks;
  const std::vector<double> fused = losses({}, 20), composed = losses(naive, 20);
  EXPECT_LT(fused.back(), 0.5 * fused.front());
  EXPECT_EQ(losses(blocks, 20), fused);  // recomputed: the same bits
  for (size_t i = 0; i < fused.size(); ++i) {
    EXPECT_NEAR(fused[i], composed[i], 1e-3) << i;  // sums in another order, over 20 steps
  }
}

// Blocks know nothing of FP8: the model has their layers multiply in it.
TEST(CustomBlock, MultipliesInFp8) {
  ModelOptions bf16, fp8;
  bf16.precision = Precision::bf16;
  fp8.precision = Precision::fp8;
  const std::vector<double> expected = losses(bf16, 20), found = losses(fp8, 20);
  EXPECT_NE(found.front(), expected.front());
  EXPECT_LT(found.back(), 0.5 * found.front());
}

// Greedy decoding with a cache equals the whole sequence without one.
void expect_decodes(const TransformerLM& model) {
  EXPECT_FALSE(model.decode_weights().has_value());
  Decoder decoder(model, 1, 16);
  kernels::SampleOptions greedy;
  greedy.temperature = 0.0f;
  decoder.start(0, {3, 1, 4}, greedy);
  std::vector<int32_t> made;
  for (int i = 0; i < 8; ++i) {
    decoder.step();
    made.push_back(decoder.fetch()[0]);
  }
  EXPECT_FALSE(decoder.fused());
  EXPECT_EQ(made, testing_support::without_cache(model, {3, 1, 4}, 8));
  EXPECT_THROW(Decoder(model, 1, 16, Decoder::Way::launched), Error);
}

TEST(CustomBlock, DecodesWithoutAFusedStep) {
  expect_decodes(Instance({}).model);
}

TEST(CustomBlock, APreNormBlockIsItsMlpAndNames) {
  const Instance s({}, kRelu);
  EXPECT_NE(s.arena.table().find("blocks.1.mlp.up.weight"), nullptr);
  EXPECT_NE(s.arena.table().find("blocks.1.ln_2.weight"), nullptr);
  expect_decodes(s.model);
  const std::vector<double> trained = losses({}, 20, kRelu);
  EXPECT_LT(trained.back(), 0.5 * trained.front());
}

TEST(CustomBlock, ThePageShowsTheRealCode) {
  EXPECT_EQ(testing_support::pieces_of_page("adding_a_block.md"), 5);
}

}  // namespace
}  // namespace quern
