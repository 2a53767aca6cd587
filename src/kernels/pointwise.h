// The pointwise family: y = f(x) and dx = f'(x) dy, one functor an op (common/pointwise_math.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/common/pointwise_math.h"

namespace quern::kernels {

namespace cpu {
// y[i] = f.forward(x[i]); contiguous; y may be x. T: float, bfloat16, float16, and on the CPU
// double.
template <class F, class T>
void pointwise_forward(T* y, const T* x, int64_t n, F f, Stream stream);

// dx[i] = f.backward(x[i], y[i], dy[i]). Of x and y only the one that F names (F::kSaved) is read;
// the other may be null.
template <class F, class T>
void pointwise_backward(T* dx, const T* x, const T* y, const T* dy, int64_t n, F f, Stream stream);
}  // namespace cpu

namespace cuda {
template <class F, class T>
void pointwise_forward(T* y, const T* x, int64_t n, F f, Stream stream);
template <class F, class T>
void pointwise_backward(T* dx, const T* x, const T* y, const T* dy, int64_t n, F f, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
