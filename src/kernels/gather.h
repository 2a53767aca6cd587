// y[o, j, i] = x[o, index[o, j, i], i], as torch.gather along the middle dimension.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

struct GatherShape {
  int64_t outer = 1, n = 1, m = 1, inner = 1;
};

namespace cpu {
// x is (outer, n, inner), index and y are (outer, m, inner). An index outside [0, n) throws on the
// CPU and gives NaN on CUDA. T: float, bfloat16, float16, and on the CPU double.
template <class T>
void gather_forward(T* y, const T* x, const int64_t* index, const GatherShape& s, Stream stream);

// dx = 0, then dx[o, index[o, j, i], i] += dy[o, j, i] in the order of j. Sums repeated indices in
// acc_t<T>.
template <class T>
void gather_backward(T* dx, const T* dy, const int64_t* index, const GatherShape& s, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void gather_forward(T* y, const T* x, const int64_t* index, const GatherShape& s, Stream stream);
template <class T>
void gather_backward(T* dx, const T* dy, const int64_t* index, const GatherShape& s, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
