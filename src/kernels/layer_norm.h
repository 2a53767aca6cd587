// LayerNorm (Ba et al., 2016): y = w (x - mean) / sqrt(var + eps) + b, over the last dimension C.
// The variance is the mean squared distance from the mean, never E[x^2] - E[x]^2. T: float,
// bfloat16, and on the CPU double.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
template <class T>
void layer_norm_forward(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x, const acc_t<T>* w,
                        const acc_t<T>* b, int64_t rows, int64_t C, double eps, Stream stream);

int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes

// dw and db (C each, may be null) are added to when `add_dw` and `add_db`.
template <class T>
void layer_norm_backward(T* dx, acc_t<T>* dw, acc_t<T>* db, const T* dy, const T* x,
                         const acc_t<T>* w, const acc_t<T>* mean, const acc_t<T>* rstd,
                         int64_t rows, int64_t C, bool add_dw, bool add_db, void* scratch,
                         Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void layer_norm_forward(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x, const acc_t<T>* w,
                        const acc_t<T>* b, int64_t rows, int64_t C, double eps, Stream stream);
int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream stream);  // bytes
template <class T>
void layer_norm_backward(T* dx, acc_t<T>* dw, acc_t<T>* db, const T* dy, const T* x,
                         const acc_t<T>* w, const acc_t<T>* mean, const acc_t<T>* rstd,
                         int64_t rows, int64_t C, bool add_dw, bool add_db, void* scratch,
                         Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
