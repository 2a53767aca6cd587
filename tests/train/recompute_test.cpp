#include "train/recompute.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace quern
