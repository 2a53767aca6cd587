#include "bench/gemm_rate.h"

#include <gtest/gtest.h>

#include "bench/step.h"
#include "model/model_cost.h"

namespace quern {
namespace {

ModelConfig small_config() {
  return {.vocab_size = 31, .context = 16, .d_model = 24, .d_ff = 40, .layers = 3, .heads = 3};
}

double total(const std::vector<StepGemm>& products) {
  double flops = 0.0;
  for (const StepGemm& product : products) flops += product.flops;
  return flops;
}

// flops_per_token() counts every parameter, norm weights too, as torch_lm.py does.
double expected_flops(const ModelConfig& config, int64_t B, int64_t T) {
  const auto norms = static_cast<double>((2 * config.layers + 1) * config.d_model);
  return (flops_per_token(config, T) - 6.0 * norms) * static_cast<double>(B * T);
}

// Sums of products of integers below 2^53: exact in double.
TEST(StepGemms, AreAllOfTheStepsFlops) {
  ModelConfig config = small_config();
  EXPECT_EQ(total(step_gemms(config, 5, 16)), expected_flops(config, 5, 16));
  config.kv_heads = 1;
  EXPECT_EQ(total(step_gemms(config, 5, 16)), expected_flops(config, 5, 16));
  config.tied = true;
  config.head_dim = 16;
  EXPECT_EQ(total(step_gemms(config, 2, 7)), expected_flops(config, 2, 7));
}

TEST(StepGemms, CountTheirProducts) {
  for (const StepGemm& product : step_gemms(small_config(), 2, 16)) {
    const kernels::Gemm& g = product.gemm;
    const double whole = 2.0 * static_cast<double>(g.m * g.n * g.k * g.batch * product.count);
    const bool causal = product.name.starts_with("attention");
    EXPECT_DOUBLE_EQ(product.flops, causal ? whole / 2 : whole) << product.name;
  }
}

TEST(GemmRates, AreWeightedByTime) {
  const GemmRates rates = measure_gemm_rates(small_config(), 2, 16);
  double seconds = 0.0;
  for (const GemmRate& rate : rates.products) {
    EXPECT_GT(rate.seconds, 0.0) << rate.product.name;
    seconds += rate.seconds;
  }
  EXPECT_DOUBLE_EQ(rates.seconds, seconds);
  EXPECT_DOUBLE_EQ(rates.flops_per_second(), rates.flops / seconds);
  // A step that takes twice the products' time runs at half their rate.
  EXPECT_NE(gemm_table(rates, 2 * rates.seconds).find("ratio 0.500"), std::string::npos);
}

}  // namespace
}  // namespace quern
