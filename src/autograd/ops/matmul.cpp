#include "autograd/ops/matmul.h"

#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"

namespace quern {

namespace {

// The result's shape; throws when the operands do not match.
Shape product_shape(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  detail::check_floating("matmul", "a", a);
  detail::check_like("matmul", "b", b, a.dtype(), a.device());
  detail::check_ndim("matmul", "a", a, 2);
  detail::check_ndim("matmul", "b", b, 2);
  const int64_t M = a.dim(transpose_a ? -1 : -2), K = a.dim(transpose_a ? -2 : -1);
  const int64_t b_rows = b.dim(transpose_b ? -1 : -2), N = b.dim(transpose_b ? -2 : -1);
  QUERN_CHECK(K == b_rows, "matmul: b", transpose_b ? " transposed" : "", " has ", b_rows,
              " rows, expected a's ", K, " columns (a ", a.shape(), ", b ", b.shape(), ")");
  Shape shape = a.ndim() > 2 ? a.shape() : b.shape();
  shape[shape.ndim() - 2] = M;
  shape[shape.ndim() - 1] = N;
  if (a.ndim() > 2 && b.ndim() > 2) {
    Shape expected = b.shape();
    expected[b.ndim() - 2] = M;
    expected[b.ndim() - 1] = N;
    QUERN_CHECK(shape == expected, "matmul: b has shape ", b.shape(),
                ", expected 2-D or the leading dimensions of a ", a.shape());
  }
  return shape;
}

}  // namespace

// saves: both operands, as the products read them
Variable matmul(const Variable& a_in, const Variable& b_in, bool transpose_a, bool transpose_b) {
  const RangeScope range("matmul");
  const Shape shape = product_shape(a_in.value(), b_in.value(), transpose_a, transpose_b);
  // One b for all matrices of a: their rows are one tall matrix.
  const bool tall = a_in.shape().ndim() > 2 && b_in.shape().ndim() == 2 && !transpose_a;
  const Tensor a = detail::product_operand(tall ? detail::as_rows(a_in.value()) : a_in.value());
  const Tensor b = detail::product_operand(b_in.value());
  const Tensor c = Tensor::empty(shape, a.dtype(), a.device(), "matmul");
  detail::matrix_product(tall ? detail::as_rows(c) : c, a, transpose_a, b, transpose_b);

  return record("matmul", c, {a_in, b_in}, [=](Gradients& g) {
    const Tensor dc = tall ? detail::as_rows(g.output()) : g.output();
    if (g.needs(0)) {
      const auto [target, add] = g.target(0);
      const Tensor da = tall ? detail::as_rows(target) : target;
      if (transpose_a) {
        detail::matrix_product(da, b, transpose_b, dc, true, add);  // A^T: op(b) dc^T
      } else {
        detail::matrix_product(da, dc, false, b, !transpose_b, add);  // dc op(b)^T
      }
    }
    if (g.needs(1)) {
      const auto [db, add] = g.target(1);
      if (transpose_b) {
        detail::matrix_product(db, dc, true, a, transpose_a, add);  // B^T: dc^T op(a)
      } else {
        detail::matrix_product(db, a, !transpose_a, dc, false, add);  // op(a)^T dc
      }
    }
  });
}

}  // namespace quern
