// Replaces masked elements by a value. The backward is the same function with value 0 on dy.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/binary.h"

namespace quern::kernels {

namespace cpu {
// y = mask ? value : x over layout.shape: y contiguous, x (a_strides) and mask (b_strides)
// broadcast. T: float, bfloat16, float16, and on the CPU double.
template <class T>
void masked_fill(T* y, const T* x, const uint8_t* mask, double value, const BinaryLayout& layout,
                 Stream stream);

// x is (batch, Tq, Tk): y[b, i, j] = x[b, i, j] where j <= i + Tk - Tq (the last query sees every
// key), else value. y may be x.
template <class T>
void causal_mask(T* y, const T* x, int64_t batch, int64_t Tq, int64_t Tk, double value,
                 Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void masked_fill(T* y, const T* x, const uint8_t* mask, double value, const BinaryLayout& layout,
                 Stream stream);
template <class T>
void causal_mask(T* y, const T* x, int64_t batch, int64_t Tq, int64_t Tk, double value,
                 Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
