// The rate of the matrix products that a training step consists of, each timed alone at the shape
// the model gives it: what a step could reach if it did nothing else.
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
  int64_t count = 0;   // such products in a step
  double flops = 0.0;  // that count in one step: half of a causal attention product's
};

// Every product of a step of B sequences of T tokens: forward, gradient of the input and gradient
// of the weight of each linear layer and the head, and those of attention. Their FLOPs sum to
// flops_per_token(config, T) * B * T, less the 6 a norm weight that it counts with the parameters.
std::vector<StepGemm> step_gemms(const ModelConfig& config, int64_t B, int64_t T);

// Seconds that `flops` of one of these products take: FP32, on the CPU, median of repeated calls.
double measure_gemm(const StepGemm& product);

struct GemmRate {
  StepGemm product;
  double seconds = 0.0;  // in one step
};

struct GemmRates {
  std::vector<GemmRate> products;
  double flops = 0.0;    // sums
  double seconds = 0.0;  // so that flops / seconds is the rate weighted by time

  double flops_per_second() const { return flops / seconds; }
};

GemmRates measure_gemm_rates(const ModelConfig& config, int64_t B, int64_t T);

// The products' rates one by one, and the rate of a step that takes so long beside theirs.
std::string gemm_table(const GemmRates& rates, double step_seconds);

}  // namespace quern
