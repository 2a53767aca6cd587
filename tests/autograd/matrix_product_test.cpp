#include "autograd/ops/matrix_product.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(MatrixProduct, TheResultMayHaveSpaceBetweenItsRows) {
  const Tensor a = normal({5, 3}, 0.0, 1.0), b = normal({7, 3}, 0.0, 1.0);
  const Tensor packed = Tensor::empty({5, 7}, DType::f32, kCpu, "packed");
  const Tensor all = full({5, 8}, 42.0), spaced = all.slice(1, 0, 7);
  for (const bool add : {false, true}) {
    detail::matrix_product(packed, a, false, b, true, add);
    detail::matrix_product(spaced, a, false, b, true, add);
    EXPECT_EQ(spaced.contiguous().to_vector<float>(), packed.to_vector<float>());
    EXPECT_EQ(all.slice(1, 7, 8).contiguous().to_vector<float>(), std::vector<float>(5, 42.0f));
  }
}

TEST(MatrixProduct, ARowOfTheResultIsPacked) {
  const Tensor a = normal({5, 3}, 0.0, 1.0), b = normal({7, 3}, 0.0, 1.0);
  expect_error(
      [&] {
        detail::matrix_product(zeros({7, 5}).transpose(0, 1), a, false, b, true);
      },
      {"matrix_product: d has shape (5, 7)"});
  const Tensor batch = zeros({2, 5, 8}).slice(2, 0, 7);
  expect_error(
      [&] {
        detail::matrix_product(batch, zeros({2, 5, 3}), false, b, true);
      },
      {"matrix_product: d has shape (2, 5, 7)"});
}

// One shared matrix's gradient: 1,024 products of ones. Added one by one, BF16 ends at 256 x 16.
TEST(MatrixProduct, ABatchIsSummedBeforeItIsRounded) {
  const Tensor a = full({1024, 5, 16}, 1.0, DType::bf16), b = full({1024, 16, 7}, 1.0, DType::bf16);
  for (const bool add : {false, true}) {
    const Tensor sum = full({5, 7}, 1024.0, DType::bf16);
    detail::matrix_product(sum, a, false, b, false, add);
    EXPECT_EQ(sum.to(DType::f32).to_vector<float>(),
              std::vector<float>(35, 1024 * 16 + (add ? 1024 : 0)));
  }
}

TEST(MatrixProduct, ABiasNeedsPackedRows) {
  const Tensor spaced = zeros({5, 8}).slice(1, 0, 7);
  expect_error(
      [&] {
        detail::matrix_product(spaced, zeros({5, 3}), false, zeros({7, 3}), true, false,
                               zeros({7}));
      },
      {"space between its rows", "bias"});
}

}  // namespace
}  // namespace quern
