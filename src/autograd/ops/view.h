// Changes of shape and strides. The results are views of the same memory, except that reshape
// copies if the strides allow no view, and contiguous copies what is not contiguous.
#pragma once

#include <vector>

#include "autograd/variable.h"

namespace quern {

Variable reshape(const Variable& x, const Shape& shape);  // one extent may be -1
Variable transpose(const Variable& x, int a, int b);
Variable permute(const Variable& x, const std::vector<int>& dims);
Variable slice(const Variable& x, int dim, int64_t begin, int64_t end);  // begin <= i < end
Variable expand(const Variable& x, const Shape& shape);  // extents of 1 repeat; gradients sum
Variable contiguous(const Variable& x);

}  // namespace quern
