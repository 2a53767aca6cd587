// Shared by the ops: argument checks, integer arguments, scratch memory.
#pragma once

#include "autograd/tape.h"
#include "base/error.h"
#include "tensor/visit.h"

namespace quern::detail {

// The dtype of sums, statistics and losses of `dtype` activations: f64 for f64, else f32.
DType accumulate_type(DType dtype);

// These throw "op: arg has ..., expected ...".
void check_floating(const char* op, const char* arg, const Tensor& x);
void check_shape(const char* op, const char* arg, const Tensor& x, const Shape& expected);
void check_dtype(const char* op, const char* arg, const Tensor& x, DType expected);
void check_device(const char* op, const char* arg, const Tensor& x, Device expected);
void check_like(const char* op, const char* arg, const Tensor& x, DType dtype, Device device);
void check_ndim(const char* op, const char* arg, const Tensor& x, int at_least);
// x is of floats and at least 1-d, and `w` has its dtype and device.
void check_operands(const char* op, const char* arg, const Tensor& x, const Tensor& w);

// Checks that x is i32, i64 or u16 and on `device`, and returns it packed, as `dtype`.
Tensor as_integers(const char* op, const char* arg, const Tensor& x, DType dtype, Device device);

Tensor scratch(int64_t bytes, Device device);  // uninitialised u8
// The same with bytes(stream) bytes; see decide().
template <class F>
Tensor scratch(Device device, F&& bytes) {
  return scratch(decide(device, bytes), device);
}

// Null for an undefined tensor: an optional argument of a kernel.
template <class T>
T* data_or_null(const Tensor& x) {
  return x.defined() ? x.data<T>() : nullptr;
}

// The product of the extents before the last `dims`, and x as that many rows.
int64_t count_leading(const Shape& shape, int dims = 1);
Tensor as_rows(const Tensor& x);                         // (..., C) -> (N, C); copies if it must
Shape replace_last(const Shape& shape, int64_t extent);  // (..., C) -> (..., extent)
Shape without_last(const Shape& shape);                  // (..., C) -> (...)

}  // namespace quern::detail
