#include "autograd/ops/common.h"

#include "kernels/reduce.h"
#include "tensor/visit.h"

namespace quern::detail {

DType accumulate_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

void check_floating(const char* op, const char* arg, const Tensor& x) {
  QUERN_CHECK(x.defined(), op, ": ", arg, " is undefined");
  QUERN_CHECK(is_floating(x.dtype()), op, ": ", arg, " has dtype ", x.dtype(),
              ", expected a float");
}

void check_shape(const char* op, const char* arg, const Tensor& x, const Shape& expected) {
  QUERN_CHECK(x.shape() == expected, op, ": ", arg, " has shape ", x.shape(), ", expected ",
              expected);
}

void check_dtype(const char* op, const char* arg, const Tensor& x, DType expected) {
  QUERN_CHECK(x.defined(), op, ": ", arg, " is undefined");
  QUERN_CHECK(x.dtype() == expected, op, ": ", arg, " has dtype ", x.dtype(), ", expected ",
              expected);
}

void check_device(const char* op, const char* arg, const Tensor& x, Device expected) {
  QUERN_CHECK(x.device() == expected, op, ": ", arg, " is on ", x.device(), ", expected ",
              expected);
}

void check_ndim(const char* op, const char* arg, const Tensor& x, int at_least) {
  QUERN_CHECK(x.ndim() >= at_least, op, ": ", arg, " has shape ", x.shape(), ", expected at least ",
              at_least, " dimension", at_least == 1 ? "" : "s");
}

Tensor as_integers(const char* op, const char* arg, const Tensor& x, DType dtype, Device device) {
  QUERN_CHECK(x.defined(), op, ": ", arg, " is undefined");
  const bool integral =
      x.dtype() == DType::i32 || x.dtype() == DType::i64 || x.dtype() == DType::u16;
  QUERN_CHECK(integral, op, ": ", arg, " has dtype ", x.dtype(), ", expected i32, i64 or u16");
  check_device(op, arg, x, device);
  return x.to(dtype).contiguous();
}

Tensor scratch(int64_t bytes, Device device) {
  return Tensor::empty({bytes}, DType::u8, device, "scratch");
}

int64_t count_leading(const Shape& shape, int dims) {
  int64_t count = 1;
  for (int i = 0; i < shape.ndim() - dims; ++i) count *= shape[i];
  return count;
}

Tensor as_rows(const Tensor& x) {
  return x.reshape({count_leading(x.shape()), x.shape().back()});
}

Shape replace_last(const Shape& shape, int64_t extent) {
  Shape out = shape;
  out[out.ndim() - 1] = extent;
  return out;
}

Shape without_last(const Shape& shape) {
  Shape out;
  for (int i = 0; i + 1 < shape.ndim(); ++i) out.push_back(shape[i]);
  return out;
}

// One kernel for each run of neighbouring stretched dimensions, from the right.
Tensor sum_to(const Tensor& x, const Shape& shape, DType dtype) {
  const int added = x.ndim() - shape.ndim();
  const auto stretched = [&](int i) {
    return x.shape()[i] != 1 && (i < added || shape[i - added] == 1);
  };
  Tensor y = x;
  for (int end = x.ndim(); end > 0; --end) {
    if (!stretched(end - 1)) continue;
    int begin = end - 1;
    while (begin > 0 && stretched(begin - 1)) --begin;
    kernels::ReduceShape s;
    Shape kept = y.shape();
    for (int i = 0; i < y.ndim(); ++i) {
      (i < begin ? s.outer : i < end ? s.n : s.inner) *= y.shape()[i];
      if (i >= begin && i < end) kept[i] = 1;
    }
    const Tensor out = Tensor::empty(kept, dtype, y.device(), "broadcast sum");
    visit_pointwise("sum", y, [&]<class T>(std::type_identity<T>, auto stream) {
      const Tensor work = scratch(sum_forward_scratch(s, stream), y.device());
      if (dtype == y.dtype()) {
        return sum_forward(out.data<T>(), y.data<T>(), s, 1.0, work.raw_data(), stream);
      }
      if constexpr (std::is_same_v<T, bfloat16>) {
        if (dtype == DType::f32)
          return sum_forward(out.data<float>(), y.data<T>(), s, 1.0, work.raw_data(), stream);
      }
      fail(cat("sum: cannot give ", dtype, " from x of ", y.dtype()));
    });
    y = out;
    end = begin + 1;
  }
  return y.reshape(shape).to(dtype);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  return sum_to(x, shape, x.dtype());
}

SumTarget::SumTarget(Gradients& g, int input, DType dtype) {
  if (!g.needs(input)) return;
  target_ = g.target(input);
  const bool direct = target_.grad.dtype() == dtype;
  QUERN_CHECK(direct || !target_.add, "gradient: cannot add ", dtype, " to a buffer of ",
              target_.grad.dtype());
  sum = direct ? target_.grad
               : Tensor::empty(target_.grad.shape(), dtype, target_.grad.device(), "gradient sum");
  add = target_.add;
}

void SumTarget::finish() {
  if (sum.defined() && !sum.shares_storage(target_.grad)) copy(target_.grad, sum);
}

}  // namespace quern::detail
