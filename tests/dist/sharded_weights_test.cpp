// Weights of which each rank updates a share: whole on every rank again at the next forward.
#include "dist/sharded_weights.h"

#include <gtest/gtest.h>

#include "dist/layout.h"
#include "model/transformer_lm.h"
#include "optim/adamw.h"
#include "run/weights.h"
#include "support/thread_ranks.h"
#include "support/training.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

using Case = std::tuple<Precision, BucketExchange, Parallel, int>;

class ShardedWeightsTest : public testing::TestWithParam<Case> {
 protected:
  // The owner's new value of element i: one that BF16 has, or one halfway to the next.
  static float value_of(int64_t i) {
    return 1.0f + 0x1p-7f * static_cast<float>(i % 127) + (i % 3 == 0 ? 0x1p-8f : 0.0f);
  }
  static std::vector<float> values_of_all(int64_t begin, int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(value_of(begin + i));
    return values;
  }
  static void expect_weights(const Parameter& parameter, const char* when) {
    const auto expected = values_of_all(parameter.begin(), parameter.numel());
    const Tensor weight = parameter.weight().value();
    std::vector<float> read = expected;
    if (weight.dtype() == DType::bf16) {
      for (float& x : read) x = static_cast<float>(kernels::rounded_weight(x));
    }
    EXPECT_EQ(weight.to(DType::f32).to_vector<float>(), read) << parameter.name() << ' ' << when;
    if (!parameter.fp32) return;
    EXPECT_EQ(parameter.master().value().to_vector<float>(), expected)
        << parameter.name() << ' ' << when;
  }
};

TEST_P(ShardedWeightsTest, ReachTheOtherRanks) {
  const auto& [precision, exchange, parallel, ranks] = GetParam();
  const auto texts = run_thread_ranks(ranks, {}, [&](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    ModelOptions options;
    options.precision = precision;
    ModelConfig config = tiny_model();
    config.layers = 5;
    TransformerLM model(config, options);
    const auto layout = [&](const ParameterTable& table) {
      return layout_of(table, parallel, exchange, ranks, group.rank());
    };
    ParameterArena arena(model, {.precision = precision, .layout = layout});
    ShardedWeights shards(arena, group, exchange);
    AdamW optimizer(arena, {});
    const int64_t n = arena.trainable();
    EXPECT_EQ(arena.values().numel() == n, ranks == 1);
    const bool in_turns = parallel == Parallel::fsdp && exchange == BucketExchange::overlapped;
    EXPECT_EQ(arena.copies().numel() < n, in_turns);

    const OptimizerBuffer moment = optimizer.buffers()[0];
    for (const auto& [begin, end, place] : arena.layout().values.pieces()) {
      for (int64_t i = begin; i < end; ++i) {
        arena.values().data<float>()[place + i - begin] = value_of(i);
        moment.data.data<float>()[place + i - begin] = value_of(i);
      }
    }
    {
      std::string lacking;
      const auto resumed = shards.whole(lacking);  // before the first step
      for (const Parameter* parameter : arena.parameters()) expect_weights(*parameter, "resumed");
    }
    shards.begin_step();
    const std::vector<Bucket> buckets = make_buckets(arena.table(), exchange);
    for (const bool first : {true, false}) {
      shards.begin_micro_batch(first);
      for (const Parameter* parameter : arena.parameters()) expect_weights(*parameter, "forward");
      for (size_t i = buckets.size(); i-- > 0;) {
        for (const Parameter* parameter : arena.parameters()) {
          if (buckets[i].holds(parameter->begin())) expect_weights(*parameter, "backward");
        }
        shards.enter_backward(i);
        shards.leave_backward(i);
      }
      shards.end_micro_batch();
    }
    for (const bool first : {true, false}) {
      shards.begin_micro_batch(first);
      for (const Parameter* parameter : arena.parameters()) {
        expect_weights(*parameter, "forward alone");
      }
      shards.end_micro_batch();
    }
    for (const int round : {1, 2}) {
      std::string lacking;
      const auto whole = shards.whole(lacking);
      for (const Parameter* parameter : arena.parameters()) expect_weights(*parameter, "whole");
      EXPECT_GT(round, 0);
    }
    shards.begin_micro_batch(true);
    expect_weights(*arena.parameters().front(), "again");
    shards.end_micro_batch();

    // Each rank has asked for another range, the first one for everything.
    const int64_t begin = group.rank() * (n / 5), end = n - group.rank() * (n / 7);
    for (OptimizerBuffer buffer : {values_of(arena), moment}) {
      buffer.slices = {{"a", Shape{end - begin}, begin}, {"b", Shape{7}, begin + 3}};
      std::vector<float> expected = values_of_all(begin, end - begin);
      const std::vector<float> b = values_of_all(begin + 3, 7);
      expected.insert(expected.end(), b.begin(), b.end());
      EXPECT_EQ(shards.gathered(buffer).to_vector<float>(), expected);
      buffer.slices = {};
      EXPECT_EQ(shards.gathered(buffer).numel(), 0);
    }
    return std::string();
  });
  EXPECT_EQ(texts, std::vector<std::string>(static_cast<size_t>(ranks)));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ShardedWeightsTest,
    testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                     testing::Values(BucketExchange::naive, BucketExchange::overlapped),
                     testing::Values(Parallel::zero1, Parallel::zero2, Parallel::fsdp),
                     testing::Values(1, 2, 3)));

// A rank without room for all weights: none has them, and the next attempt succeeds.
TEST(ShardedWeights, TooLittleMemoryOnOneRankIsKnownToAll) {
  const auto texts = run_thread_ranks(3, {}, [](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    ModelConfig config = tiny_model();
    config.layers = 5;
    TransformerLM model(config, {});
    const auto layout = [&](const ParameterTable& table) {
      return layout_of(table, Parallel::fsdp, BucketExchange::overlapped, 3, group.rank());
    };
    ParameterArena arena(model, {.layout = layout});
    ShardedWeights shards(arena, group, BucketExchange::overlapped);
    Allocator& allocator = *context.allocator(kCpu);
    if (group.rank() == 1) allocator.set_limit(allocator.stats().reserved);
    std::string lacking, nothing;
    EXPECT_EQ(shards.whole(lacking), nullptr) << group.rank();
    allocator.set_limit(0);
    EXPECT_NE(shards.whole(nothing), nullptr) << group.rank();
    EXPECT_EQ(nothing, "");
    return lacking;
  });
  for (const std::string& text : texts) {
    EXPECT_TRUE(text.starts_with("rank 1 of 3 on ")) << text;
    EXPECT_NE(text.find(": out of memory on cpu: parameters (whole) "), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

// The frozen weights are on every rank, and a share begins with the values of the whole.
TEST(ShardedWeights, InitialValuesAreThoseOfTheWhole) {
  Context context(kCpu);
  const ContextScope scope(context);
  const auto regroup = [](const std::string& name, ParameterGroup& group) {
    group.frozen = name.find("layers.1") != std::string::npos;
  };
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    ModelOptions options;
    options.precision = precision;
    TransformerLM model(tiny_model(), options);
    const ParameterArena whole(model, {.precision = precision, .seed = 3, .regroup = regroup});
    for (int rank = 0; rank < 3; ++rank) {
      TransformerLM part_model(tiny_model(), options);
      const ParameterArena part(part_model, {.precision = precision,
                                             .seed = 3,
                                             .regroup = regroup,
                                             .layout = [&](const ParameterTable& table) {
                                               return layout_of(table, Parallel::fsdp,
                                                                BucketExchange::overlapped, 3,
                                                                rank);
                                             }});
      const Tensor all = whole.exact_values();
      EXPECT_LT(part.values().numel(), all.numel());
      for (const auto& [begin, end, place] : part.layout().values.pieces()) {
        EXPECT_EQ(part.values().slice(0, place, place + end - begin).to_vector<float>(),
                  all.slice(0, begin, end).to_vector<float>());
      }
      for (size_t i = 0; i < whole.parameters().size(); ++i) {
        const Parameter &a = *part.parameters()[i], &b = *whole.parameters()[i];
        if (!b.group.frozen) continue;
        EXPECT_EQ(a.weight().value().to(DType::f32).to_vector<float>(),
                  b.weight().value().to(DType::f32).to_vector<float>());
        if (b.fp32) {
          EXPECT_EQ(a.value().to_vector<float>(), b.value().to_vector<float>());
        }
      }
    }
  }
}

}  // namespace
}  // namespace quern
