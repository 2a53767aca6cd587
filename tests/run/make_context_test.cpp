#include "run/make_context.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

TEST(MakeContext, HoldsTheOptionsOfTheConfiguration) {
  ComputeSection compute;
  compute.device = DeviceChoice::cpu;
  compute.precision = Precision::tf32;
  compute.fp32_products = Fp32Products::fma;
  compute.deterministic = false;
  const auto context = make_context(compute, 1);
  EXPECT_EQ(context->options, static_cast<const OpOptions&>(compute));
  EXPECT_TRUE(context->options.tf32());
  EXPECT_NE(context->options, OpOptions{});
}

}  // namespace
}  // namespace quern
