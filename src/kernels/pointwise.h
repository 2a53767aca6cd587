// The pointwise family: y = f(x), dx = f'(x) dy, one functor per op (common/pointwise_math.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/common/pointwise_math.h"

namespace quern::kernels {

// The layout of x: rows of `cols` elements that start `pitch` elements apart. cols = 0: packed.
struct PointwiseRows {
  int64_t cols = 0, pitch = 0;
};

namespace cpu {
// y[i] = f.forward(x[i]) for n elements; x lies in rows. y is packed, and may be x if x is packed.
// T: float, bfloat16, float16, and on the CPU double.
template <class T>
void pointwise_forward(T* y, const T* x, const PointwiseRows& rows, int64_t n, const PointwiseOp& f,
                       Stream stream);

// dx[i] = f.backward(x[i], y[i], dy[i]). Reads only the one of x and y that F names (F::kSaved);
// the other may be null. All but x are packed.
template <class T>
void pointwise_backward(T* dx, const T* x, const PointwiseRows& rows, const T* y, const T* dy,
                        int64_t n, const PointwiseOp& f, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void pointwise_forward(T* y, const T* x, const PointwiseRows& rows, int64_t n, const PointwiseOp& f,
                       Stream stream);
template <class T>
void pointwise_backward(T* dx, const T* x, const PointwiseRows& rows, const T* y, const T* dy,
                        int64_t n, const PointwiseOp& f, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
