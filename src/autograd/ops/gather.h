#pragma once

#include "autograd/variable.h"

namespace quern {

// y[..., j, ...] = x[..., index[..., j, ...], ...] along `dim` (-1: the last), as torch.gather.
// index (i64, or i32 or u16, which are converted) has x's extents except at `dim`, and is y's
// shape. The gradient sums repeated indices. An index out of range throws on the CPU, NaN on a GPU.
Variable gather(const Variable& x, int dim, const Tensor& index);

}  // namespace quern
