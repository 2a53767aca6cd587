#include "autograd/ops/op_checks.h"

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

void check_like(const char* op, const char* arg, const Tensor& x, DType dtype, Device device) {
  check_dtype(op, arg, x, dtype);
  check_device(op, arg, x, device);
}

void check_ndim(const char* op, const char* arg, const Tensor& x, int at_least) {
  QUERN_CHECK(x.ndim() >= at_least, op, ": ", arg, " has shape ", x.shape(), ", expected at least ",
              at_least, " dimension", at_least == 1 ? "" : "s");
}

void check_operands(const char* op, const char* arg, const Tensor& x, const Tensor& w) {
  check_floating(op, arg, x);
  check_ndim(op, arg, x, 1);
  check_like(op, "w", w, x.dtype(), x.device());
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
  return Tensor::empty({bytes}, DType::u8, device, {"scratch", MemoryCategory::workspace});
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

}  // namespace quern::detail
