#include "run/make_context.h"

#include <gtest/gtest.h>

#include "nn/linear.h"
#include "run/make_optimizer.h"
#include "support/files.h"

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

TEST(MakeContext, ATableOfProductsIsForAGpu) {
  ComputeSection compute;
  compute.device = DeviceChoice::cpu;
  compute.gemm_table = "/no/such/table";
  EXPECT_NO_THROW(make_context(compute, 1)) << "the CPU reads none";
  testing_support::expect_error([&] { use_gemm_table_file(compute.gemm_table); },
                                {"gemm_table: /no/such/table cannot be read", "no such file"});
}

TEST(MakeContext, Fp8NeedsItsGpu) {
  const Device gpu{DeviceType::cuda, 0};
  const kernels::cuda::DeviceTraits older{108, 163 << 10, false};
  testing_support::expect_error([&] { check_precision(Precision::fp8, gpu, older); },
                                {"precision is fp8", "9.0", "cuda:0", "bf16"});
  EXPECT_NO_THROW(check_precision(Precision::bf16, gpu, older));
  EXPECT_NO_THROW(check_precision(Precision::fp8, gpu, kernels::cuda::kHopper));
  EXPECT_NO_THROW(check_precision(Precision::fp8, kCpu, {}));
}

TEST(MakeContext, AnUnknownOptimizerIsAnError) {
  Linear layer(2, 3, Init::normal(1.0));
  ParameterArena arena(layer, {});
  Config config;
  config.optimizer.kind = static_cast<OptimizerKind>(99);
  EXPECT_THROW(make_optimizer(arena, config), Error);
}

TEST(MakeContext, AFileOfProductsHasNoneForABuildWithoutCuda) {
  if (kBuiltWithCuda) GTEST_SKIP() << "this build has CUDA code";
  const testing_support::TemporaryFolder folder;
  EXPECT_FALSE(use_gemm_table_file(testing_support::write_file(folder / "table", "x").string()));
}

}  // namespace
}  // namespace quern
