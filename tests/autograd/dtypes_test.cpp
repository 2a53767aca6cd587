// Every case of the table in f32 and bf16 against double: each dtype has kernels of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/cpu_levels.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

// `relative` of the result's size, and as much again for results that cancel to almost nothing.
void expect_close_to_double(DType dtype, double relative) {
  at_each_cpu_level([&] {
    for (const OpCase& c : op_cases()) {
      SCOPED_TRACE(cat(c.op, ": ", c.label));
      const auto exact = run_case(c, DType::f64), low = run_case(c, dtype);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LE(distance(low[i], exact[i]), relative * (norm(exact[i]) + 1.0)) << "result " << i;
      }
    }
  });
}

// A few roundings of 6e-8, and exponents up to 4 that magnify them.
TEST(Dtypes, F32IsCloseToDouble) {
  expect_close_to_double(DType::f32, 2e-6);
}

// The naive twins round to 8 bits (2e-3) after each of up to ten small ops.
TEST(Dtypes, Bf16IsCloseToDouble) {
  expect_close_to_double(DType::bf16, 2e-2);
}

// Vectors of any width add in the same order, so the processor changes no bit. (Only double and
// fp32_products = fma leave their order to Eigen, and processors with BF16 products add in pairs.)
TEST(Dtypes, EveryCpuLevelGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const OpCase& c : op_cases()) {
      SCOPED_TRACE(cat(c.op, ": ", c.label, ", ", dtype));
      std::vector<std::vector<double>> expected;
      at_each_cpu_level([&] {
        if (dtype == DType::bf16 && multiplies_bfloat16()) return;
        const auto results = run_case(c, dtype);
        if (expected.empty()) expected = results;
        EXPECT_EQ(results, expected);
      });
    }
  }
}

// The gradients of a case after `passes` backward passes, collected in FP32 buffers as a
// parameter's are. The buffers start as NaN: the first pass must overwrite every element.
std::vector<std::vector<float>> collect(const OpCase& c, DType dtype, int passes) {
  std::vector<std::shared_ptr<Leaf>> stores;
  std::vector<Variable> leaves;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const bool wide = std::count(c.wide.begin(), c.wide.end(), i) > 0;
    stores.push_back(std::make_shared<Leaf>());
    stores.back()->grad = full(c.inputs[i].shape(), std::nan(""));
    stores.back()->has_buffer = true;
    leaves.push_back(Variable::leaf(c.inputs[i].to(wide ? DType::f32 : dtype), stores.back()));
  }
  for (int pass = 0; pass < passes; ++pass) {
    const Variable y = c.fn(leaves);
    // A loss may have added a gradient already, that for an incoming gradient of 1.
    backward(y, y.shape().ndim() == 0 ? Tensor() : values(y.shape(), 20).to(y.dtype()));
  }
  std::vector<std::vector<float>> grads;
  for (const auto& store : stores) {
    grads.push_back(store->fresh ? std::vector<float>() : store->grad.to_vector<float>());
  }
  return grads;
}

TEST(Dtypes, EveryGradientAddsUpInAnFp32Buffer) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const OpCase& c : op_cases()) {
      SCOPED_TRACE(cat(c.op, ": ", c.label, ", ", dtype));
      const auto once = collect(c, dtype, 1), twice = collect(c, dtype, 2);
      for (size_t i = 0; i < once.size(); ++i) {
        ASSERT_EQ(once[i].size(), twice[i].size());
        for (size_t j = 0; j < once[i].size(); ++j) {
          // Sums that continue in the buffer may round differently: a few 6e-8 of the terms.
          ASSERT_NEAR(twice[i][j], 2.0f * once[i][j], 2e-6 * (1.0 + std::abs(once[i][j])))
              << "input " << i << " element " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quern
