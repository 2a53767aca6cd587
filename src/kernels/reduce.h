// The reduction family: sum, mean and max over the middle extent of an (outer, n, inner) array.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

struct ReduceShape {
  int64_t outer = 1, n = 1, inner = 1;
};

namespace cpu {
int64_t sum_forward_scratch(const ReduceShape& s, Stream stream);  // bytes; may be 0

// y[o, i] = sum (times `scale`) of x[o, :, i]. Accumulates in acc_t<T>, in a fixed order. An empty
// sum is 0. T: float, bfloat16, float16, and on the CPU double. Y is T, or float for bfloat16.
template <class Y, class T>
void sum_forward(Y* y, const T* x, const ReduceShape& s, double scale, void* scratch,
                 Stream stream);

// y[o, i] = sum (times `scale`) of x[o, :, i]^2; otherwise as sum_forward, with its scratch.
template <class T>
void sum_squares_forward(T* y, const T* x, const ReduceShape& s, double scale, void* scratch,
                         Stream stream);

// dx[o, j, i] = scale * dy[o, i].
template <class T>
void sum_backward(T* dx, const T* dy, const ReduceShape& s, double scale, Stream stream);

// y[o, i] = max of x[o, :, i], index[o, i] the first j that attains it. NaN wins. n must be at
// least 1.
template <class T>
void max_forward(T* y, int64_t* index, const T* x, const ReduceShape& s, Stream stream);

// dx[o, j, i] = dy[o, i] where j == index[o, i], else 0.
template <class T>
void max_backward(T* dx, const T* dy, const int64_t* index, const ReduceShape& s, Stream stream);
}  // namespace cpu

namespace cuda {
int64_t sum_forward_scratch(const ReduceShape& s, Stream stream);
template <class Y, class T>
void sum_forward(Y* y, const T* x, const ReduceShape& s, double scale, void* scratch,
                 Stream stream);
template <class T>
void sum_squares_forward(T* y, const T* x, const ReduceShape& s, double scale, void* scratch,
                         Stream stream);
template <class T>
void sum_backward(T* dx, const T* dy, const ReduceShape& s, double scale, Stream stream);
template <class T>
void max_forward(T* y, int64_t* index, const T* x, const ReduceShape& s, Stream stream);
template <class T>
void max_backward(T* dx, const T* dy, const int64_t* index, const ReduceShape& s, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
