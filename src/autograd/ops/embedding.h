#pragma once

#include <optional>

#include "autograd/variable.h"

namespace quern {

// Rows of w (V, C) by ids (any shape S; i32, or i64 or u16, converted to i32) -> (S..., C).
// `out` is the result's dtype: w's, or f32 for a bf16 w. The gradient sums repeated ids in their
// order, in FP32. An id outside [0, V) throws on the CPU and gives a row of NaN on a GPU.
Variable embedding(const Variable& w, const Tensor& ids, std::optional<DType> out = {});

// y[..., t, :] = x[..., t, :] + w[begin + t, :] for x (..., T, C) and w (P, C) -> x's shape and
// dtype. w has x's dtype, or is bf16 for an f32 x. The gradient of w sums over the leading
// dimensions in FP32; rows outside [begin, begin + T) get 0.
Variable add_rows(const Variable& x, const Variable& w, int64_t begin);

}  // namespace quern
