// Weights of which each rank updates a share: whole on every rank again at the next forward.
#include "dist/sharded_weights.h"

#include <gtest/gtest.h>

#include "model/transformer_lm.h"
#include "optim/adamw.h"
#include "run/weights.h"
#include "support/thread_ranks.h"
#include "support/training.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

using Case = std::tuple<Precision, BucketExchange, int>;

class ShardedWeightsTest : public testing::TestWithParam<Case> {
 protected:
  // What rank p's AdamW gives element i.
  static float value_of(int64_t i) { return 1.0f + 0.001f * static_cast<float>(i % 1000); }
};

TEST_P(ShardedWeightsTest, ReachTheOtherRanks) {
  const auto& [precision, exchange, ranks] = GetParam();
  const auto texts = run_thread_ranks(ranks, {}, [&](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    ModelOptions options;
    options.precision = precision;
    TransformerLM model(tiny_model(), options);
    ParameterArena arena(model, {.precision = precision});
    ShardedWeights shards(arena, group, exchange);
    AdamW optimizer(arena, {}, shards.share());

    const Tensor updated = from_vector(std::vector<float>(arena.trainable()), {arena.trainable()});
    for (int64_t i = 0; i < arena.trainable(); ++i) updated.data<float>()[i] = value_of(i);
    fill(arena.values(), -1.0);
    int64_t at = 0;
    const OptimizerBuffer moment = optimizer.buffers()[0];
    for (const auto& [begin, end] : *shards.share()) {
      copy(arena.values().slice(0, begin, end), updated.slice(0, begin, end));
      copy(moment.data.slice(0, at, at + end - begin), updated.slice(0, begin, end));
      at += end - begin;
    }
    EXPECT_EQ(moment.data.numel(), at);
    EXPECT_EQ(at == arena.trainable(), ranks == 1);
    arena.refresh_copies();

    shards.begin_step();
    shards.begin_forward();
    const Tensor copies = Tensor::empty(updated.shape(), DType::bf16, kCpu);
    copy(copies, updated);
    for (const Parameter* parameter : arena.parameters()) {
      const NamedSlice slice{parameter->name(), parameter->shape(), parameter->begin()};
      EXPECT_EQ(parameter->weight().value().to(DType::f32).to_vector<float>(),
                ParameterArena::slice(arena.copies().defined() ? copies : updated, slice)
                    .to(DType::f32)
                    .to_vector<float>())
          << parameter->name();
      if (parameter->fp32) {
        EXPECT_EQ(parameter->master().value().to_vector<float>(),
                  ParameterArena::slice(updated, slice).to_vector<float>());
      }
    }
    shards.end_forward();
    shards.complete();
    EXPECT_EQ(arena.values().to_vector<float>(), updated.to_vector<float>());
    if (arena.copies().defined()) {
      EXPECT_EQ(arena.copies().to(DType::f32).to_vector<float>(),
                copies.to(DType::f32).to_vector<float>());
    }

    const std::vector<OptimizerBuffer> whole = shards.gathered({moment});
    EXPECT_EQ(whole[0].prefix, moment.prefix);
    EXPECT_FALSE(whole[0].share);
    EXPECT_EQ(whole[0].data.defined(), group.rank() == 0);
    if (group.rank() == 0) {
      EXPECT_EQ(whole[0].data.to_vector<float>(), updated.to_vector<float>());
    }
    return std::string();
  });
  EXPECT_EQ(texts, std::vector<std::string>(static_cast<size_t>(ranks)));
}

INSTANTIATE_TEST_SUITE_P(Cases, ShardedWeightsTest,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Values(BucketExchange::naive,
                                                          BucketExchange::overlapped),
                                          testing::Values(1, 2, 3)));

}  // namespace
}  // namespace quern
