// Every fused op against its naive twin: equal in double; under bf16 at most twice as wrong, both
// measured against double.
#include <gtest/gtest.h>

#include "autograd/ops/attention.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/split.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/view.h"
#include "autograd/ops/weighted_sum.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Inputs = std::vector<Variable>;
using Fn = std::function<Variable(const Inputs&)>;

struct Twin {
  std::string name;
  std::vector<Tensor> inputs;
  Fn fused, naive;
  std::vector<size_t> wide;  // inputs that stay f32 under bf16
};

constexpr double kEps = 1e-5;
constexpr int64_t kB = 2, kT = 37, kH = 4, kHk = 2, kD = 16, kC = 96, kV = 101;

RopeTable table_for(const Variable& x) {
  return make_rope_table(kT, kD, 10000.0, x.dtype() == DType::f64 ? DType::f64 : DType::f32);
}

Tensor targets() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kB * kT; ++i) ids.push_back(i % 7 == 3 ? kIgnoreIndex : i * 31 % kV);
  return from_vector(ids, {kB * kT});
}

Variable naive_qkv_attention(const Variable& qkv, bool rotates) {
  const std::vector<Variable> parts = split(qkv, {kH * kD, kHk * kD, kHk * kD}, -1);
  const RopeTable table = table_for(qkv);
  Variable q = reshape(parts[0], {kB, kT, kH, kD}), k = reshape(parts[1], {kB, kT, kHk, kD});
  if (rotates) q = naive_rope(q, table), k = naive_rope(k, table);
  return reshape(naive_attention(q, k, reshape(parts[2], {kB, kT, kHk, kD})), {kB, kT, kH * kD});
}

Variable join(const std::pair<Variable, Variable>& pair) {
  return add(pair.first, cast(pair.second, pair.first.dtype()));
}

std::vector<Twin> twins() {
  const Tensor x = values({kB, kT, kC}, 1, -2.0, 2.0), y = values({kB, kT, kC}, 2, -2.0, 2.0);
  const Tensor w = values({kC}, 3, 0.5, 1.5), b = values({kC}, 4);
  const Tensor heads = values({kB, kT, kH, kD}, 5, -2.0, 2.0);
  const Tensor k = values({kB, kT, kHk, kD}, 6, -2.0, 2.0), v = values({kB, kT, kHk, kD}, 7);
  const Tensor rows = values({kB * kT, kC}, 8), head = values({kV, kC}, 9);
  std::vector<Twin> all;
  all.push_back({"rms_norm",
                 {x, w},
                 [](const Inputs& in) { return rms_norm(in[0], in[1], kEps); },
                 [](const Inputs& in) { return naive_rms_norm(in[0], in[1], kEps); },
                 {1}});
  for (const bool wide_residual : {false, true}) {
    all.push_back(
        {wide_residual ? "add_rms_norm, f32 residual" : "add_rms_norm",
         {x, y, w},
         [](const Inputs& in) { return join(add_rms_norm(in[0], in[1], in[2], kEps)); },
         [](const Inputs& in) { return join(naive_add_rms_norm(in[0], in[1], in[2], kEps)); },
         wide_residual ? std::vector<size_t>{0, 2} : std::vector<size_t>{2}});
    all.push_back(
        {wide_residual ? "add_layer_norm, f32 residual" : "add_layer_norm",
         {x, y, w, b},
         [](const Inputs& in) { return join(add_layer_norm(in[0], in[1], in[2], in[3], kEps)); },
         [](const Inputs& in) {
           return join(naive_add_layer_norm(in[0], in[1], in[2], in[3], kEps));
         },
         wide_residual ? std::vector<size_t>{0, 2, 3} : std::vector<size_t>{2, 3}});
  }
  all.push_back({"layer_norm",
                 {x, w, b},
                 [](const Inputs& in) { return layer_norm(in[0], in[1], in[2], kEps); },
                 [](const Inputs& in) { return naive_layer_norm(in[0], in[1], in[2], kEps); },
                 {1, 2}});
  all.push_back({"dropout",
                 {x},
                 [](const Inputs& in) { return dropout(in[0], 0.3, make_draws(5, 2), 1); },
                 [](const Inputs& in) { return naive_dropout(in[0], 0.3, make_draws(5, 2), 1); },
                 {}});
  all.push_back({"rope",
                 {heads},
                 [](const Inputs& in) { return rope(in[0], table_for(in[0])); },
                 [](const Inputs& in) { return naive_rope(in[0], table_for(in[0])); },
                 {}});
  all.push_back({"swiglu",
                 {x},
                 [](const Inputs& in) { return swiglu(in[0]); },
                 [](const Inputs& in) { return naive_swiglu(in[0]); },
                 {}});
  all.push_back({"swiglu_linear",
                 {x, normal({7, x.dim(-1) / 2}, 0.0, 1.0)},
                 [](const Inputs& in) { return swiglu_linear(in[0], in[1]); },
                 [](const Inputs& in) { return linear(naive_swiglu(in[0]), in[1]); },
                 {}});
  all.push_back(
      {"gelu_linear",
       {x, values({kC}, 11), normal({7, kC}, 0.0, 1.0), values({7}, 12)},
       [](const Inputs& in) { return gelu_linear(in[0], in[1], in[2], in[3]); },
       [](const Inputs& in) { return linear(gelu_tanh(add(in[0], in[1])), in[2], in[3]); },
       {}});
  all.push_back({"weighted_sum",
                 {x, w},
                 [](const Inputs& in) { return weighted_sum(in[0], in[1]); },
                 [](const Inputs& in) { return sum(mul(in[0], in[1]), -1); },
                 {}});
  for (const bool causal : {true, false}) {
    all.push_back(
        {causal ? "attention, causal" : "attention",
         {heads, k, v},
         [=](const Inputs& in) { return flash_attention(in[0], in[1], in[2], {.causal = causal}); },
         [=](const Inputs& in) { return naive_attention(in[0], in[1], in[2], {.causal = causal}); },
         {}});
  }
  all.push_back({"rope_attention",
                 {values({kB, kT, (kH + 2 * kHk) * kD}, 10, -2.0, 2.0)},
                 [](const Inputs& in) {
                   return rope_attention(scale(in[0], 1.0), kH, kHk, kD, table_for(in[0]));
                 },
                 [](const Inputs& in) { return naive_qkv_attention(in[0], true); },
                 {}});
  all.push_back({"qkv_attention",
                 {values({kB, kT, (kH + 2 * kHk) * kD}, 10, -2.0, 2.0)},
                 [](const Inputs& in) { return qkv_attention(in[0], kH, kHk, kD); },
                 [](const Inputs& in) { return naive_qkv_attention(in[0], false); },
                 {}});
  all.push_back({"cross_entropy",
                 {values({kB * kT, kV}, 11, -4.0, 4.0)},
                 [](const Inputs& in) { return cross_entropy(in[0], targets()); },
                 [](const Inputs& in) { return naive_cross_entropy(in[0], targets()); },
                 {}});
  all.push_back(
      {"lm_head",
       {rows, head},
       [](const Inputs& in) {
         return lm_head_cross_entropy(in[0], in[1], targets(), kIgnoreIndex, 32);
       },
       [](const Inputs& in) { return naive_cross_entropy(linear(in[0], in[1]), targets()); },
       {}});
  all.push_back(
      {"lm_head with a z-loss",
       {rows, head},
       [](const Inputs& in) {
         return lm_head_loss(in[0], in[1], targets(), {.chunk_rows = 32, .z_loss = 0.1}).loss;
       },
       [](const Inputs& in) {
         const Variable logits = linear(in[0], in[1]);
         return add(naive_cross_entropy(logits, targets()),
                    scale(naive_z_loss(logits, targets()), 0.1));
       },
       {}});
  return all;
}

std::vector<std::vector<double>> run(const Twin& twin, const Fn& fn, DType dtype) {
  return run_case({twin.name, "", twin.inputs, fn, twin.wide}, dtype);
}

TEST(Twins, EqualInDouble) {
  for (const Twin& twin : twins()) {
    SCOPED_TRACE(twin.name);
    const auto fused = run(twin, twin.fused, DType::f64), naive = run(twin, twin.naive, DType::f64);
    for (size_t i = 0; i < fused.size(); ++i) {
      // Sums of a few hundred terms in another order: some 1e2 roundings of 1e-16.
      EXPECT_LE(distance(fused[i], naive[i]), 1e-13 * norm(naive[i])) << "result " << i;
    }
  }
}

TEST(Twins, UnderBf16AtMostTwiceTheNaiveError) {
  for (const Twin& twin : twins()) {
    SCOPED_TRACE(twin.name);
    const auto exact = run(twin, twin.naive, DType::f64);
    const auto fused = run(twin, twin.fused, DType::bf16),
               naive = run(twin, twin.naive, DType::bf16);
    for (size_t i = 0; i < fused.size(); ++i) {
      const double size = norm(exact[i]), error = distance(fused[i], exact[i]) / size;
      // If a result is FP32 (losses, gradients of norms' weights) the naive error may be 0 by luck;
      // 1e-6 is a few FP32 roundings.
      EXPECT_LE(error, 2.0 * distance(naive[i], exact[i]) / size + 1e-6) << "result " << i;
      EXPECT_LT(error, 0.02) << "result " << i;  // bf16 keeps 8 bits: a rounding is 2e-3
    }
  }
}

}  // namespace
}  // namespace quern
