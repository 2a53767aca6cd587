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

// d_gate_up (rows, 2F) may be gate_up.
template <class T>
void swiglu_backward(T* d_gate_up, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream stream);

// The backward and the output in one pass: dy_to_y (rows, F) holds dy before and y after, with the
// bits of the forward.
template <class T>
void swiglu_backward_and_output(T* d_gate_up, T* dy_to_y, const T* gate_up, int64_t rows, int64_t F,
                                Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void swiglu_forward(T* y, const T* gate_up, int64_t rows, int64_t F, Stream stream);
template <class T>
void swiglu_backward(T* d_gate_up, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream stream);
template <class T>
void swiglu_backward_and_output(T* d_gate_up, T* dy_to_y, const T* gate_up, int64_t rows, int64_t F,
                                Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
