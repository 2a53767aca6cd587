// BF16 matrices to FP8 (fp8.h): the matrix itself, its transpose, or both in one pass over memory.
// A block's scale maps its largest magnitude to 448.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/stream.h"
#include "kernels/fp8.h"

namespace quern::kernels {

namespace cpu {
// out = x, out_t = x^T for x (rows, cols) with ld elements between its rows.
void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream stream);
// The same for x = swiglu(gate_up), gate_up (rows, 2 F), rounded to BF16 as swiglu_forward does.
void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream stream);
// The same for x (rows, 2 F), the gradient that swiglu_backward gives from dy (rows, F).
void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream stream);
}  // namespace cpu

namespace cuda {
void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream stream);
void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream stream);
void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
