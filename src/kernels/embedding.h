// Rows of a table by token id, and the deterministic sum of their gradients.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
// y[i, :] = w[ids[i], :]. Instances (TY, TW): (float, float), (bfloat16, bfloat16), (float,
// bfloat16), and on the CPU (double, double). An id outside [0, V) throws on the CPU; on CUDA its
// row is NaN.
template <class TY, class TW>
void embedding_forward(TY* y, const TW* w, const int32_t* ids, int64_t n, int64_t V, int64_t C,
                       Stream stream);

// Bytes of scratch that embedding_backward needs for n tokens.
int64_t embedding_backward_scratch(int64_t n, int64_t V, int64_t C, Stream stream);

// dw[v, :] = sum of dy[i, :] over ids[i] == v; += when `add`, otherwise rows without a token become
// 0. Each sum is in the order of i in every launch (on CUDA by groups of 32 tokens of an id, whose
// sums are added in order). T: float, bfloat16, and on the CPU double.
template <class T>
void embedding_backward(acc_t<T>* dw, const T* dy, const int32_t* ids, int64_t n, int64_t V,
                        int64_t C, bool add, void* scratch, Stream stream);
}  // namespace cpu

namespace cuda {
template <class TY, class TW>
void embedding_forward(TY* y, const TW* w, const int32_t* ids, int64_t n, int64_t V, int64_t C,
                       Stream stream);
int64_t embedding_backward_scratch(int64_t n, int64_t V, int64_t C, Stream stream);
template <class T>
void embedding_backward(acc_t<T>* dw, const T* dy, const int32_t* ids, int64_t n, int64_t V,
                        int64_t C, bool add, void* scratch, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
