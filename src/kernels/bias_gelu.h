// y = gelu(x + b), GeluTanh of a matrix product (rows, F) and the bias that the product lacks. T:
// float, bfloat16, and on the CPU double.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
// b (F) may be null, for 0. x + b is not rounded to T.
template <class T>
void bias_gelu_forward(T* y, const T* x, const T* b, int64_t rows, int64_t F, Stream stream);

int64_t bias_gelu_backward_scratch(int64_t rows, int64_t F, Stream stream);  // bytes

// dx = gelu'(x + b) dy, and y again unless it is null; dx or y may be dy. db (F), unless null: the
// sum over the rows of dx before its rounding, in a fixed order, += when `add_db`.
template <class T>
void bias_gelu_backward(T* dx, T* y, acc_t<T>* db, const T* dy, const T* x, const T* b,
                        int64_t rows, int64_t F, bool add_db, void* scratch, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void bias_gelu_forward(T* y, const T* x, const T* b, int64_t rows, int64_t F, Stream stream);
int64_t bias_gelu_backward_scratch(int64_t rows, int64_t F, Stream stream);
template <class T>
void bias_gelu_backward(T* dx, T* y, acc_t<T>* db, const T* dy, const T* x, const T* b,
                        int64_t rows, int64_t F, bool add_db, void* scratch, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
