// The rate of a training step's matrix products, each timed alone at the shape given by the model:
// the limit for a step that does nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "model/model_config.h"

namespace quern {

struct StepGemm {
  std::string name;  // "qkv_proj dw"
  kernels::Gemm gemm;
  int64_t count = 0;   // number of such products in a step
  double flops = 0.0;  // counted for one step: half of a causal attention product's
};

// Every product of a step of B sequences of T tokens: forward, input gradient and weight gradient
// of each linear layer and the head, and the products of attention. Their FLOPs sum to
// flops_per_token(config, T) * B * T, less the 6 per norm weight that it counts.
std::vector<StepGemm> step_gemms(const ModelConfig& config, int64_t B, int64_t T);

// Seconds for one of these products: FP32, on the CPU, median of repeated calls.
double measure_gemm(const StepGemm& product);

struct GemmRate {
  StepGemm product;
  double seconds = 0.0;  // of all such products in one step
};

struct GemmRates {
  std::vector<GemmRate> products;
  double flops = 0.0;    // sums
  double seconds = 0.0;  // flops / seconds is the time-weighted rate

  double flops_per_second() const { return flops / seconds; }
};

GemmRates measure_gemm_rates(const ModelConfig& config, int64_t B, int64_t T);

// The products' rates one by one, and the rate of a step of `step_seconds` beside theirs.
std::string gemm_table(const GemmRates& rates, double step_seconds);

}  // namespace quern
