// BF16 matrices to FP8 (fp8.h): the matrix itself, its transpose, or both in one pass over memory.
// A block's scale maps its largest magnitude to 448.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/stream.h"
#include "kernels/fp8.h"

namespace quern::kernels {

// The input rows x of a norm, of the residual stream's type, with its weights and the statistics of
// its forward: see rms_norm.h and layer_norm.h. b and mean are null for RMSNorm.
template <class TX>
struct NormOutput {
  const TX* x;
  const float *w, *b, *mean, *rstd;
};

namespace cpu {
// out = x, out_t = x^T for x (rows, cols) with ld elements between its rows.
void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream stream);
// The same for the norm's output (rows, C), rounded to BF16 as its forward does. TX float or
// bfloat16.
template <class TX>
void quantize_norm(const Fp8Output& out, const Fp8Output& out_t, const NormOutput<TX>& norm,
                   int64_t rows, int64_t C, Stream stream);
// The same for x = swiglu(gate_up), gate_up (rows, 2 F), rounded to BF16 as swiglu_forward does.
void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream stream);
// The same for x (rows, 2 F), the gradient that swiglu_backward gives from dy (rows, F); and
// output_t = swiglu(gate_up)^T, on a GPU from the same read if F is a multiple of 128.
void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t,
                              const Fp8Output& output_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream stream);
}  // namespace cpu

namespace cuda {
void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream stream);
template <class TX>
void quantize_norm(const Fp8Output& out, const Fp8Output& out_t, const NormOutput<TX>& norm,
                   int64_t rows, int64_t C, Stream stream);
void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream stream);
void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t,
                              const Fp8Output& output_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
