#pragma once

#include <optional>

#include "autograd/variable.h"

namespace quern {

// Rows of w (V, C) by ids (any shape S; i32, or i64 or u16, which are converted) -> (S..., C).
// `out` is the result's dtype: w's, or f32 for a bf16 w. The gradient sums repeated ids in their
// order, in FP32. An id outside [0, V) throws on the CPU and gives a row of NaN on a GPU.
Variable embedding(const Variable& w, const Tensor& ids, std::optional<DType> out = {});

}  // namespace quern
