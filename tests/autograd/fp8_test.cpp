// Linear layers that multiply in FP8, against the same in FP32: E4M3 rounds an operand by 2.6 % of
// its norm, so a product of two differs by about 3.7 %, and one that passes through another layer
// by more.
#include "autograd/ops/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/layer_norm.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/swiglu_mlp.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Inputs = std::vector<Variable>;
using Op = std::function<Variable(const Inputs&)>;
using Values = std::vector<std::vector<double>>;

std::vector<Tensor> normals(const std::vector<Shape>& shapes) {
  std::vector<Tensor> tensors;
  for (const Shape& shape : shapes) tensors.push_back(normal(shape, 0.0, 1.0).to(DType::bf16));
  return tensors;
}

std::vector<double> doubles(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

// The op's output and the gradients of all inputs for the gradient dy of the output.
Values run(const Op& op, const std::vector<Tensor>& tensors, const Tensor& dy, DType dtype) {
  Inputs inputs;
  for (const Tensor& x : tensors) inputs.push_back(Variable::leaf(x.to(dtype)));
  const Variable y = op(inputs);
  Values values{doubles(y.value())};
  backward(y, dy.to(dtype));
  for (const Variable& x : inputs) values.push_back(doubles(x.grad()));
  return values;
}

// Bounds of the relative errors; and that rounding shows, so that the products were FP8's.
void expect_near(const Values& actual, const Values& expected, double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = distance(actual[i], expected[i]) / norm(expected[i]);
    EXPECT_LT(error, bound) << "value " << i;
    EXPECT_GT(error, 0.01) << "value " << i;
  }
}

Variable linear_of(const Inputs& in) {
  return linear(in[0], in[1]);
}

TEST(Fp8, LinearIsNearItself) {
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{64, 128, 48},
                                      {33, 70, 41},
                                      {1, 256, 16},
                                      {200, 24, 300},
                                      {16, 400, 1}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << in << " x " << out);
    const auto tensors = normals({{2, rows, in}, {out, in}});
    const Tensor dy = normals({{2, rows, out}})[0];
    const Values exact = run(linear_of, tensors, dy, DType::f32);
    const Fp8Products products(true);
    expect_near(run(linear_of, tensors, dy, DType::bf16), exact, 0.045);
    EXPECT_EQ(run(linear_of, tensors, dy, DType::f32), exact) << "FP32 tensors stay as they are";
  }
}

TEST(Fp8, ABiasIsAddedAsItIs) {
  const auto tensors = normals({{40, 64}, {32, 64}, {32}});
  const Tensor dy = normals({{40, 32}})[0];
  const Fp8Products products(true);
  const Values biased =
      run([](const Inputs& in) { return linear(in[0], in[1], in[2]); }, tensors, dy, DType::bf16);
  const Values plain = run(linear_of, {tensors[0], tensors[1]}, dy, DType::bf16);
  const std::vector<double> bias = doubles(tensors[2]);
  for (size_t i = 0; i < plain[0].size(); ++i) {
    EXPECT_NEAR(biased[0][i], plain[0][i] + bias[i % 32], 0.01 * std::abs(biased[0][i]) + 1e-6);
  }
  EXPECT_EQ(biased[1], plain[1]);
  EXPECT_EQ(biased[2], plain[2]);
  EXPECT_LT(distance(biased[3], doubles(sum(Variable(dy.to(DType::f32)), 0).value())), 0.1);
}

Variable mlp_by_steps(const Inputs& in) {
  return linear(swiglu(linear(in[0], in[1])), in[2]);
}
Variable mlp_in_fp8(const Inputs& in) {
  return swiglu_mlp(in[0], in[1], in[2]);
}
Variable mlp_that_keeps_its_output(const Inputs& in) {
  return swiglu_mlp(in[0], in[1], in[2], ActivationOutput::kept);
}

std::vector<Tensor> mlp_inputs(int64_t rows, int64_t C, int64_t F) {
  const auto scaled = [](const Shape& shape) {
    return normal(shape, 0.0, 1.0 / std::sqrt(shape[1])).to(DType::bf16);
  };
  return {normals({{rows, C}})[0], scaled({2 * F, C}), scaled({C, F})};
}

TEST(Fp8, TheMlpIsNearItsSteps) {
  for (const auto& [rows, C, F] :
       {std::array<int64_t, 3>{64, 128, 96}, {33, 40, 72}, {130, 48, 17}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << C << " x " << F);
    const auto tensors = mlp_inputs(rows, C, F);
    const Tensor dy = normals({{rows, C}})[0];
    const Values exact = run(mlp_by_steps, tensors, dy, DType::f32);
    const Fp8Products products(true);
    const Values fused = run(mlp_in_fp8, tensors, dy, DType::bf16);
    expect_near(fused, exact, 0.08);
    const Values steps = run(mlp_by_steps, tensors, dy, DType::bf16);
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_LT(distance(fused[i], steps[i]) / norm(steps[i]), 0.02) << "value " << i;
    }
  }
}

// The gradient of each input is the same whether or not the others need one, and adds to what is
// there.
void expect_alone_and_added(const Op& op, const std::vector<Tensor>& tensors, const Tensor& dy) {
  const Values all = run(op, tensors, dy, DType::bf16);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Inputs inputs(tensors.begin(), tensors.end());
    inputs[i] = Variable::leaf(tensors[i]);
    backward(op(inputs), dy);
    EXPECT_EQ(doubles(inputs[i].grad()), all[i + 1]) << "input " << i;
    backward(op(inputs), dy);
    const std::vector<double> twice = doubles(inputs[i].grad());
    for (size_t j = 0; j < twice.size(); ++j) {
      EXPECT_NEAR(twice[j], 2.0 * all[i + 1][j], 0.01 * std::abs(twice[j]) + 1e-6);
    }
  }
}

TEST(Fp8, EachGradientAloneAndAdded) {
  const Fp8Products products(true);
  expect_alone_and_added(linear_of, normals({{40, 33}, {50, 33}}), normals({{40, 50}})[0]);
  for (const auto& mlp : {mlp_in_fp8, mlp_that_keeps_its_output}) {
    expect_alone_and_added(mlp, mlp_inputs(40, 48, 32), normals({{40, 48}})[0]);
  }
}

// Norms' and SwiGLU's outputs that the backward makes again are those that it would have kept.
void expect_made_again(int64_t rows, int64_t C, int64_t F) {
  const Fp8Products products(true);
  const auto weights = mlp_inputs(1, C, F);
  const auto rest = normals({{rows, C}, {C}, {C}, {rows, C}});
  for (const DType stream : {DType::bf16, DType::f32}) {
    for (const bool rms : {true, false}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << C << ", " << stream << ", rms " << rms);
      const auto gradients = [&](bool again) {
        Inputs in{Variable::leaf(rest[0].to(stream))};
        for (const Tensor& x : {rest[1], rest[2]}) in.push_back(Variable::leaf(x.to(DType::f32)));
        for (const Tensor& x : {weights[1], weights[2]}) in.push_back(Variable::leaf(x));
        Variable h = rms ? rms_norm(in[0], in[1], 1e-5, DType::bf16)
                         : layer_norm(in[0], in[1], in[2], 1e-5, DType::bf16);
        EXPECT_TRUE(Saved(h).fp8_transpose().defined());
        if (!again) h = h.without_recipe();
        backward(
            swiglu_mlp(h, in[3], in[4], again ? ActivationOutput::rebuilt : ActivationOutput::kept),
            rest[3]);
        Values values;
        for (const Variable& x : in) {
          if (rms && &x == &in[2]) continue;  // no bias
          values.push_back(doubles(x.grad()));
        }
        return values;
      };
      EXPECT_EQ(gradients(true), gradients(false));
    }
  }
}

TEST(Fp8, WhatIsMadeAgainHasTheSameBits) {
  expect_made_again(40, 48, 32);
  expect_made_again(133, 37, 130);
  expect_made_again(0, 48, 32);
}

TEST(Fp8, AnOutlierChangesNoOtherRow) {
  const Fp8Products products(true);
  const auto tensors = normals({{256, 256}, {64, 256}});
  const std::vector<double> before = doubles(linear(tensors[0], tensors[1]).value());
  copy(tensors[0].slice(0, 3, 4).slice(1, 9, 10), full({1, 1}, 1e4, DType::bf16));
  const std::vector<double> after = doubles(linear(tensors[0], tensors[1]).value());
  for (size_t i = 0; i < before.size(); ++i) {
    if (i / 64 == 3) continue;
    ASSERT_EQ(after[i], before[i]) << i;
  }
}

// A channel of 1e4 beside channels of 0.01: it is beyond E4M3's range of 2^18 with the others, but
// not in their blocks of the weights' gradients.
TEST(Fp8, AnOutlierChannelLeavesTheOthersGradients) {
  constexpr int64_t kRows = 256, kIn = 256, kOut = 64, kOutlier = 9;
  auto tensors = normals({{kRows, kIn}, {kOut, kIn}});
  tensors[0] = scale(Variable(tensors[0]), 0.01).value();
  const Tensor channel = tensors[0].slice(1, kOutlier, kOutlier + 1);
  copy(channel, scale(Variable(channel.contiguous()), 1e6).value());
  const Tensor dy = normals({{kRows, kOut}})[0];
  const Values exact = run(linear_of, tensors, dy, DType::f32);
  const Fp8Products products(true);
  const Values found = run(linear_of, tensors, dy, DType::bf16);
  for (size_t c = 0; c < kIn; ++c) {  // dw (out, in), channel by channel
    std::vector<double> of_found, of_exact;
    for (size_t r = 0; r < kOut; ++r) {
      of_found.push_back(found[2][r * kIn + c]);
      of_exact.push_back(exact[2][r * kIn + c]);
    }
    ASSERT_LT(distance(of_found, of_exact) / norm(of_exact), 0.08) << "channel " << c;
  }
  EXPECT_LT(distance(found[0], exact[0]) / norm(exact[0]), 0.06);
}

TEST(Fp8, EmptyInputs) {
  const Fp8Products products(true);
  const auto of = [](int64_t rows, int64_t in, int64_t out) {
    const Inputs inputs{Variable::leaf(zeros({rows, in}, DType::bf16)),
                        Variable::leaf(zeros({out, in}, DType::bf16))};
    const Variable y = linear_of(inputs);
    backward(y, zeros({rows, out}, DType::bf16));
    EXPECT_EQ(inputs[1].grad().shape(), inputs[1].shape());
    return doubles(y.value());
  };
  EXPECT_EQ(of(0, 16, 3), std::vector<double>{});
  EXPECT_EQ(of(2, 0, 3), std::vector<double>(6));
}

}  // namespace
}  // namespace quern
