// SwiGLU fused into the matrix products beside it, without a pass over memory of its own. For BF16
// on Hopper. kernels/swiglu.h and gemm.h do the same in two steps, whose products the library may
// sum in another order.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/stream.h"

namespace quern::kernels {

// The sizes of a SwiGLU layer: x (rows, C), gate_up (rows, 2 F), its output y (rows, F).
struct SwigluSizes {
  int64_t rows = 0, C = 0, F = 0;
};

namespace cuda {
// Whether the current GPU and the two kernels below support these sizes: C and F are multiples of
// 8. Pointers are aligned to 16 bytes.
bool swiglu_product_runs(const SwigluSizes& sizes, Stream stream);
// Whether they are faster than the two steps: only if the product's tiles fill the GPU evenly.
bool swiglu_product_forward_pays(const SwigluSizes& sizes, Stream stream);
bool swiglu_product_backward_pays(const SwigluSizes& sizes, Stream stream);

// gate_up = x w^T, y = silu(gate) up. w (2 F, C).
void swiglu_product_forward(bfloat16* gate_up, bfloat16* y, const bfloat16* x, const bfloat16* w,
                            const SwigluSizes& sizes, Stream stream);

// From dz (rows, C), the gradient of z = y w^T with w (C, F): computes dy = dz w, from it
// d_gate_up, and y again unless null. d_gate_up is not gate_up.
void swiglu_product_backward(bfloat16* d_gate_up, bfloat16* y, const bfloat16* gate_up,
                             const bfloat16* dz, const bfloat16* w, const SwigluSizes& sizes,
                             Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
