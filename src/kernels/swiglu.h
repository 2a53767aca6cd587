// SwiGLU (Shazeer, 2020): y = silu(gate) up. gate and up are the two halves of each row of gate_up
// (rows, 2F). T: float, bfloat16, and on the CPU double.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
template <class T>
void swiglu_forward(T* y, const T* gate_up, int64_t rows, int64_t F, Stream stream);

// d_gate_up (rows, 2F), which may be gate_up. y unless it is null: the output in the same pass,
// with the bits of the forward; y may be dy.
template <class T>
void swiglu_backward(T* d_gate_up, T* y, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void swiglu_forward(T* y, const T* gate_up, int64_t rows, int64_t F, Stream stream);
template <class T>
void swiglu_backward(T* d_gate_up, T* y, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
