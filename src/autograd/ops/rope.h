// Rotary position embedding (Su et al., 2021, section 3.2), rotating halves as Hugging Face's Llama
// does: with x1 = x[..., :D/2] and x2 = x[..., D/2:], y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin.
#pragma once

#include "autograd/variable.h"
#include "kernels/common/rope_frequency.h"

namespace quern {

// (positions, D/2) each: the cosine and sine of p theta^(-2i/D), optionally with frequencies scaled
// for long contexts. f32, or f64 for f64 activations.
struct RopeTable {
  Tensor cos, sin;
};
RopeTable make_rope_table(int64_t positions, int64_t D, double theta, DType dtype = DType::f32,
                          const kernels::RopeScaling& scaling = {});

namespace detail {
// Throws unless the table is one for heads of D and for x's dtype and device.
void check_rope_table(const char* op, const RopeTable& table, const Tensor& x, int64_t D);
}  // namespace detail

// x (B, T, H, D) of any strides with D contiguous -> the same shape, contiguous. Token t of each
// sequence has position positions[t] (i32 (T)) or positions[b, t] (i32 (B, T)), or first + t
// without positions. D is even. A position beyond the table throws on the CPU, and gives NaN on a
// GPU.
Variable rope(const Variable& x, const RopeTable& table, const Tensor& positions = {},
              int64_t first = 0);

}  // namespace quern
