#include "autograd/ops/rope.h"

#include "autograd/ops/op_checks.h"
#include "kernels/rope.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

RopeTable make_rope_table(int64_t positions, int64_t D, double theta, DType dtype,
                          const kernels::RopeScaling& scaling) {
  QUERN_CHECK(D > 0 && D % 2 == 0, "rope table: D is ", D, ", expected a positive even number");
  const Tensor cos = Tensor::empty({positions, D / 2}, dtype, "rope cos");
  const Tensor sin = Tensor::empty({positions, D / 2}, dtype, "rope sin");
  visit("rope table", cos, [&]<class T>(std::type_identity<T>, auto stream) {
    if constexpr (std::is_same_v<T, acc_t<T>>) {
      rope_table(cos.data<T>(), sin.data<T>(), positions, D, theta, scaling, stream);
    } else {
      fail(cat("rope table: dtype is ", dtype, ", expected f32 or f64"));
    }
  });
  return {cos, sin};
}

namespace detail {

void check_rope_table(const char* op, const RopeTable& table, const Tensor& x, int64_t D) {
  QUERN_CHECK(D % 2 == 0, op, ": x has head_dim ", D, ", expected an even number");
  QUERN_CHECK(table.cos.ndim() == 2 && table.cos.dim(1) == D / 2, op, ": the table has shape ",
              table.cos.shape(), ", expected (positions, ", D / 2, ")");
  check_shape(op, "the table's sin", table.sin, table.cos.shape());
  for (const Tensor& part : {table.cos, table.sin}) {
    check_like(op, "the table", part, accumulate_type(x.dtype()), x.device());
    QUERN_CHECK(part.is_contiguous(), op,
                ": the table is a strided view, expected a contiguous one");
  }
}

}  // namespace detail

namespace {

void check_arguments(const Tensor& x, const RopeTable& table, const Tensor& positions,
                     int64_t first) {
  detail::check_floating("rope", "x", x);
  QUERN_CHECK(x.ndim() == 4, "rope: x has shape ", x.shape(), ", expected (B, T, H, D)");
  const int64_t B = x.dim(0), T = x.dim(1), D = x.dim(3);
  detail::check_rope_table("rope", table, x, D);
  if (!positions.defined()) {
    QUERN_CHECK(first >= 0 && first + T <= table.cos.dim(0), "rope: positions ", first, " to ",
                first + T, ", the table has ", table.cos.dim(0));
    return;
  }
  const bool fits = positions.shape() == Shape{T} || positions.shape() == Shape{B, T};
  QUERN_CHECK(fits, "rope: positions have shape ", positions.shape(), ", expected (", T, ") or (",
              B, ", ", T, ")");
}

Tensor rotate(const Tensor& x, const RopeTable& table, const Tensor& positions, int64_t first,
              bool inverse) {
  const Tensor y = empty_like(x, "rope");
  kernels::RopeLayout layout{.B = x.dim(0), .T = x.dim(1), .H = x.dim(2), .D = x.dim(3)};
  for (int i = 0; i < 3; ++i) {
    layout.x_strides[i] = x.strides()[i];
    layout.y_strides[i] = y.strides()[i];
  }
  layout.first_position = first;
  layout.table_rows = table.cos.dim(0);
  layout.positions_per_batch = positions.defined() && positions.ndim() == 2;
  visit("rope", x, [&]<class T>(std::type_identity<T>, auto stream) {
    rope(y.data<T>(), x.data<T>(), table.cos.data<acc_t<T>>(), table.sin.data<acc_t<T>>(),
         detail::data_or_null<int32_t>(positions), layout, inverse, stream);
  });
  return y;
}

}  // namespace

// saves: the table and the positions
Variable rope(const Variable& x_in, const RopeTable& table, const Tensor& positions_in,
              int64_t first) {
  const RangeScope range("rope");
  check_arguments(x_in.value(), table, positions_in, first);
  const Tensor positions =
      positions_in.defined()
          ? detail::as_integers("rope", "positions", positions_in, DType::i32, x_in.device())
          : Tensor();
  const bool packed_heads = x_in.value().strides()[3] == 1;
  const Tensor x = packed_heads ? x_in.value() : x_in.value().contiguous();
  // The gradient rotates back: the transpose of a rotation is its inverse.
  return record("rope", rotate(x, table, positions, first, false), {x_in},
                [table, positions, first](Gradients& g) {
                  g.add(0, rotate(g.output(), table, positions, first, true));
                });
}

}  // namespace quern
