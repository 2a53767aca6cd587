// Ten steps of Muon against torch.optim.Muon (tests/fixtures/golden/make_muon.py), for any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "autograd/tape.h"
#include "bench/golden_case.h"
#include "bench/verify.h"
#include "config/config_table.h"
#include "optim/muon.h"
#include "run/make_context.h"
#include "run/model_instance.h"
#include "run/weights.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern::testing_support {

using MuonParameter = std::tuple<const char*, Precision, KernelKind>;

// CASES of make_muon.py.
inline MuonOptions muon_case_options(const std::string& name, KernelKind kernels) {
  MuonOptions options;
  options.adamw.kernels = kernels;
  if (name == "mha") return options;
  options.momentum = 0.9;
  options.nesterov = false;
  options.lr_scale = 5.0;
  options.adjust = MuonAdjust::original;
  return options;
}

inline double error_of(const std::vector<float>& found, const std::vector<float>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{found[i]} - expected[i], 2);
    norm += double{expected[i]} * expected[i];
  }
  return std::sqrt(difference / norm);
}

// The design's tolerances; FP32 uses TF32's, since the iteration rounds to BF16 under every
// precision. A sum in another order moves elements to the neighbouring BF16. Measured on a CPU:
// weights 2e-4 to 2e-3, losses up to 1e-4.
inline void expect_muon_case(DeviceChoice device, const MuonParameter& parameter) {
  const auto& [name, precision, kernels] = parameter;
  ComputeSection compute;
  compute.device = device;
  compute.precision = precision;
  compute.kernels = kernels;
  const auto context = make_context(compute, 0);
  const ContextScope scope(*context);
  const std::filesystem::path folder = golden_folder() / name;
  const GoldenCase golden = GoldenCase::open(folder);
  const auto expected = SafetensorsFile::open(folder / "muon.safetensors");
  ModelInstance instance(golden.config, compute, InitScheme::normal, true, 0);
  load_weights(instance.arena, golden.weights);
  Muon optimizer(instance.arena, muon_case_options(name, kernels));
  const Tensor tokens = from_vector(golden.tokens, {golden.B, golden.T});
  const Tensor targets = from_vector(golden.targets, {golden.B, golden.T});
  const std::vector<float> losses = floats_of(expected.tensor("losses"));
  const std::vector<float> norms = floats_of(expected.tensor("grad_norms"));
  const Tolerances tolerances =
      tolerances_of(precision == Precision::fp32 ? Precision::tf32 : precision);
  for (size_t step = 0; step < losses.size(); ++step) {
    instance.arena.zero_grad();
    const Variable loss = instance.model.loss(tokens, targets);
    backward(loss);
    EXPECT_NEAR(loss.value().item(), losses[step], tolerances.losses * losses[step])
        << "step " << step;
    optimizer.step(1e-3, loss.value());
    EXPECT_NEAR(optimizer.state().norm, norms[step], tolerances.grad_norms * norms[step]);
  }
  for (const TensorView& found : weights_of(instance.arena).views) {
    const double error =
        error_of(floats_of(found), floats_of(expected.tensor("final." + found.name)));
    EXPECT_LE(error, tolerances.weights) << found.name;
  }
}

inline std::string muon_case_name(const testing::TestParamInfo<MuonParameter>& info) {
  Config config;
  config.compute.precision = std::get<1>(info.param);
  config.compute.kernels = std::get<2>(info.param);
  return std::string(std::get<0>(info.param)) + "_" + value_text(config, "precision") + "_" +
         value_text(config, "kernels");
}

inline auto all_muon_parameters() {
  return testing::Combine(testing::Values("mha", "qwen2_bias"),
                          testing::Values(Precision::fp32, Precision::tf32, Precision::bf16),
                          testing::Values(KernelKind::naive, KernelKind::fused));
}

}  // namespace quern::testing_support
