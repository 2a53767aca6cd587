// Dtypes that sums, products and gradients refuse, and inputs that gradcheck refuses.
#include <gtest/gtest.h>

#include "autograd/gradcheck.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/sum_target.h"
#include "autograd/tape.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(GradientErrors, DtypesOfSums) {
  const Tensor x = ones({2, 3}), half = ones({2, 3}, DType::bf16);
  expect_error([&] { detail::sum_to(x, {3}, DType::f64); }, {"sum: cannot give f64 from x of f32"});
  expect_error([&] { detail::sum_to(half, {3}, DType::f64); }, {"cannot give f64 from x of bf16"});
  const Tensor wide = zeros({2, 2}, DType::f64);
  expect_error([&] { detail::matrix_product(wide, x, false, x, true); },
               {"matmul: cannot accumulate products of f32 in f64"});
  expect_error([&] { detail::matrix_product(wide, half, false, half, true); },
               {"matmul: cannot accumulate products of bf16 in f64"});
}

std::shared_ptr<Leaf> buffer_of(const Shape& shape, DType dtype, std::string name) {
  return std::make_shared<Leaf>(Leaf{.name = std::move(name),
                                     .grad = zeros(shape, dtype),
                                     .has_buffer = true,
                                     .on_ready = nullptr,
                                     .on_use = nullptr});
}

// A gradient whose dtype does not fit the buffer of its leaf.
TEST(GradientErrors, DtypeOfTheBuffer) {
  const auto leaf = [](const Tensor& value, DType buffer, const char* name) {
    return Variable::leaf(value, buffer_of(value.shape(), buffer, name));
  };
  const Variable x = leaf(ones({2}), DType::bf16, "x");
  expect_error([&] { backward(scale(x, 2.0), ones({2})); },
               {"gradient of x: cannot add f32 to a buffer of bf16"});
  const Variable w = leaf(ones({3}), DType::bf16, "w");
  const auto pass = [&] { backward(rms_norm(ones({2, 3}), w, 1e-5), ones({2, 3})); };
  pass();
  expect_error(pass, {"gradient: cannot add f32 to a buffer of bf16"});
}

TEST(GradientErrors, AnotherDtype) {
  const auto wrong = [](const Variable& x) {
    return record("wrong", ones({2}), {x}, [](Gradients& g) { g.add(0, ones({2}, DType::f64)); });
  };
  const auto refused = [&](const Variable& x) {
    expect_error([&] { backward(wrong(x), ones({2})); }, {"wrong: the gradient of input 0", "f64"});
  };
  refused(Variable::leaf(ones({2})));
  refused(scale(Variable::leaf(ones({2})), 2.0));
  const auto store = buffer_of({2}, DType::f32, "x");
  refused(Variable::leaf(ones({2}, DType::bf16), store));
  const Variable half = Variable::leaf(ones({2}, DType::f16), store);
  expect_error([&] { backward(scale(half, 2.0), ones({2}, DType::f16)); },
               {"gradient of x: cannot add f16 to a buffer of f32"});
}

TEST(GradientErrors, Gradcheck) {
  const auto twice = [](const std::vector<Variable>& in) { return scale(in[0], 2.0); };
  expect_error([&] { gradcheck(twice, {zeros({2})}); }, {"gradcheck: an input is f32 on cpu"});
  double wide[2] = {};
  const Tensor x = Tensor::borrow(wide, {2}, DType::f64, Device{DeviceType::cuda, 0});
  expect_error([&] { gradcheck(twice, {x}); }, {"gradcheck: an input is f64 on cuda:0"});
}

}  // namespace
}  // namespace quern
