// Softmax, or log-softmax where `log`, over the last dimension: the maximum is subtracted, sums are
// in acc_t<T>. T: float, bfloat16, and on the CPU double. Contiguous (rows, cols). A row of -inf
// gives zeros (log-softmax: -inf).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
template <class T>
void softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, bool log, Stream stream);

// Softmax in two passes over x, for comparison: the running maximum and sum (Milakov and
// Gimelshein, 2018), then the quotients.
template <class T>
void softmax_online_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream);

// dx = y (dy - sum(y dy)), or where `log` dy - exp(y) sum(dy).
template <class T>
void softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, bool log,
                      Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, bool log, Stream stream);
template <class T>
void softmax_online_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream);
template <class T>
void softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, bool log,
                      Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
