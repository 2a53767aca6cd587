#include "train/choose_recompute.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/context.h"

namespace quern {
namespace {

TEST(DecidedOptions, WithoutAGpuNormsAreComputedAgain) {
  Context context(kCpu);
  const ContextScope scope(context);
  Config config;
  config.model.vocab_size = 100;
  EXPECT_EQ(config.compute.recompute, Recompute::automatic);
  EXPECT_EQ(decided_options(config).recompute, Recompute::norms);
  for (const Recompute kind :
       {Recompute::none, Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
    config.compute.recompute = kind;
    EXPECT_EQ(decided_options(config).recompute, kind);
  }
}

struct RecomputeCase {
  const char* size;
  int64_t batch, context, vocab;
  Recompute expected;
};

Config config_of(const RecomputeCase& c) {
  Config config;
  apply_size(config.model, c.size);
  if (config.model.vocab_size == 0) config.model.vocab_size = c.vocab;
  config.model.context = c.context;
  config.train.batch = c.batch;
  config.compute.precision = Precision::bf16;
  return config;
}

int64_t peak_of(Config config, Recompute recompute) {
  config.compute.recompute = recompute;
  return predict_peak(config, MemoryPass::step, hopper_target()).total();
}

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(DecidedRecompute, OnAnH200) {
  constexpr int64_t kMemory = 143771 * kMiB;
  constexpr RecomputeCase kCases[] = {
      {"1.5B", 8, 1024, 0, Recompute::none},        // 31 % of memory
      {"small", 32, 1024, 50304, Recompute::none},  // 11 %, 17 % more than swiglu
      {"gpt2", 32, 1024, 50304, Recompute::none},   // 9 %, 22 % more
      {"2.7B", 4, 512, 10000, Recompute::swiglu},   // 45 % of memory, with swiglu 44 %
      {"2.7B", 8, 1024, 50304, Recompute::norms}};  // more than half of memory
  for (const RecomputeCase& c : kCases) {
    EXPECT_EQ(decided_recompute(config_of(c), hopper_target(), kMemory), c.expected) << c.size;
  }
}

// As memory becomes short: none up to a third of it, swiglu up to a half.
TEST(DecidedRecompute, AtItsBounds) {
  const Config config = config_of({"1.5B", 8, 1024, 0, Recompute::none});
  const auto decided = [&](int64_t memory) {
    return decided_recompute(config, hopper_target(), memory);
  };
  const int64_t none = peak_of(config, Recompute::none),
                swiglu = peak_of(config, Recompute::swiglu);
  EXPECT_EQ(decided(3 * none), Recompute::none);
  EXPECT_EQ(decided(3 * none - 1), Recompute::swiglu);
  EXPECT_EQ(decided(2 * swiglu), Recompute::swiglu);
  EXPECT_EQ(decided(2 * swiglu - 1), Recompute::norms);
}

// blocks only where norms need more than there is, and blocks leave 5 % free.
TEST(RecomputeOfRun, BlocksWhereTheStepFitsOnlySo) {
  Context context(kCpu);
  const ContextScope scope(context);
  Config config = config_of({"shakespeare-cpu", 64, 256, 512, Recompute::none});
  const auto needed_mib = [&](Recompute recompute, double room) {
    Config changed = config;
    changed.compute.recompute = recompute;
    const int64_t peak = predict_peak(changed, MemoryPass::step, current_target()).total();
    return static_cast<int64_t>(std::ceil(room * static_cast<double>(peak) / kMiB));
  };
  const int64_t norms = needed_mib(Recompute::norms, 1.0);
  const int64_t blocks = needed_mib(Recompute::blocks, 1.05);
  ASSERT_LT(blocks + 2, norms);
  const auto decided = [&](int64_t limit) {
    config.compute.memory_limit = limit;
    return recompute_of_run(config);
  };
  EXPECT_EQ(decided(norms), Recompute::norms);
  EXPECT_EQ(decided(norms - 1), Recompute::blocks);
  EXPECT_EQ(decided(blocks), Recompute::blocks);
  EXPECT_EQ(decided(blocks - 1), Recompute::norms);  // out of memory either way
}

}  // namespace
}  // namespace quern
