// The whole-model test against transformers, for any device: every case, precision, attention and
// kernels, within the design's tolerances (in verify.cpp). Reordering FP32 sums was measured at a
// tenth of FP32's tolerance.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "bench/verify.h"
#include "config/config_table.h"
#include "run/make_context.h"
#include "support/files.h"
#include "tensor/context.h"

namespace quern::testing_support {

using VerifyParameter = std::tuple<const char*, Precision, AttentionKind, KernelKind>;

inline ComputeSection compute_section(DeviceChoice device, const VerifyParameter& parameter) {
  ComputeSection compute;
  compute.device = device;
  compute.precision = std::get<1>(parameter);
  compute.attention = std::get<2>(parameter);
  compute.kernels = std::get<3>(parameter);
  return compute;
}

inline VerifyResult verify_on(DeviceChoice device, const VerifyParameter& parameter) {
  const ComputeSection compute = compute_section(device, parameter);
  const auto context = make_context(compute, 0);
  const ContextScope scope(*context);
  return verify_case(GoldenCase::open(golden_folder() / std::get<0>(parameter)), compute);
}

// "mha_bf16_flash_fused"
inline std::string verify_name(const testing::TestParamInfo<VerifyParameter>& info) {
  Config config;
  config.compute = compute_section(DeviceChoice::cpu, info.param);
  return std::string(std::get<0>(info.param)) + "_" + value_text(config, "precision") + "_" +
         value_text(config, "attention") + "_" + value_text(config, "kernels");
}

inline auto all_verify_parameters() {
  return testing::Combine(
      testing::Values("mha", "gqa_tied", "qwen2_bias", "qwen3_norm", "llama3_rope", "linear_rope",
                      "gpt2"),
      testing::Values(Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp8),
      testing::Values(AttentionKind::naive, AttentionKind::flash),
      testing::Values(KernelKind::naive, KernelKind::fused));
}

}  // namespace quern::testing_support
