// y = (w x).sum(-1): each row of x (rows, C) times w (C), summed. T: float, bfloat16, and on the
// CPU double.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
template <class T>
void weighted_sum_forward(T* y, const T* x, const T* w, int64_t rows, int64_t C, Stream stream);

int64_t weighted_sum_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes

// dx[r, c] = dy[r] w[c]; dw[c] = sum over r of dy[r] x[r, c], in a fixed order, += when `add_dw`.
// Either may be null.
template <class T>
void weighted_sum_backward(T* dx, acc_t<T>* dw, const T* dy, const T* x, const T* w, int64_t rows,
                           int64_t C, bool add_dw, void* scratch, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void weighted_sum_forward(T* y, const T* x, const T* w, int64_t rows, int64_t C, Stream stream);
int64_t weighted_sum_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes
template <class T>
void weighted_sum_backward(T* dx, acc_t<T>* dw, const T* dy, const T* x, const T* w, int64_t rows,
                           int64_t C, bool add_dw, void* scratch, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
