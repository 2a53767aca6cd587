#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "nn/memory_sizes.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr int64_t kFloat = 4;                      // bytes of FP32
constexpr int64_t kWorkspace = int64_t{32} << 20;  // what Context gives the matrix library

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The naive optimizer's peak, where no activations are left: two vectors as long as the parameters.
detail::MemoryMoment optimizer_moment(const detail::MemorySizes& s, int64_t elements) {
  return {0, s.fused ? 0 : 2 * elements * kFloat, 0, false};
}

}  // namespace

// As ParameterArena lays them out: slices at 128 elements, blocks at 512.
int64_t arena_elements(const ModelConfig& config) {
  const int64_t C = config.d_model, Q = config.q_width(), KV = config.kv_width();
  const int64_t F = config.d_ff, V = config.vocab_size;
  const int64_t biases = config.qkv_bias ? Q + 2 * KV : 0;
  const int64_t head_norm = config.qk_norm ? config.head_size() : 0;
  int64_t size = 0;
  const auto add = [&](std::initializer_list<int64_t> counts) {
    for (const int64_t count : counts) size = round_up(size + count, 128);
    size = round_up(size, 512);
  };
  add({V * C});
  for (int64_t i = 0; i < config.layers; ++i) {
    add({C, (Q + 2 * KV) * C, biases, head_norm, head_norm, C * Q, C, 2 * F * C, C * F});
  }
  if (config.tied) {
    add({C});
  } else {
    add({C, V * C});
  }
  return size;
}

MemoryTarget hopper_target() {
  return {true, kWorkspace};
}

MemoryTarget current_target() {
  const Context& context = Context::current();
  MemoryTarget target{false, context.gemm().workspace_bytes};
  kernels::Gemm large;
  large.m = large.n = large.k = 4096;
  large.split = context.split_products;
  on_device(context.device(), [&](auto stream) {
    target.split_products = gemm_scratch(large, DType::f32, stream) > 0;
  });
  return target;
}

PeakEstimate predict_peak(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                          int64_t T, MemoryPass pass, const MemoryTarget& target) {
  const detail::MemorySizes s = detail::memory_sizes(config, options, batch, T);
  const int64_t elements = arena_elements(config);
  const bool step = pass == MemoryPass::step;
  MemoryTarget device = target;
  device.split_products = target.split_products && options.precision == Precision::fp32;
  std::vector<detail::MemoryMoment> moments =
      step ? detail::step_moments(s, device) : detail::forward_moments(s, device);
  if (step) moments.push_back(optimizer_moment(s, elements));
  const auto peak =
      std::max_element(moments.begin(), moments.end(),
                       [](const auto& a, const auto& b) { return a.total() < b.total(); });

  const int64_t copies = options.precision == Precision::bf16 ? 2 : 0;
  const int64_t batches = 2 * s.tokens * 4;  // tokens and targets, INT32
  const int64_t rotary = config.context * config.head_size() * kFloat;
  PeakEstimate p;
  p.parameters = elements * (kFloat + copies);
  p.gradients = step ? elements * kFloat : 0;
  p.optimizer = step ? 2 * elements * kFloat : 0;
  p.activations = peak->activations;
  p.workspace = peak->workspace + target.library_workspace;
  p.other = peak->other + batches + rotary;
  return p;
}

}  // namespace quern
