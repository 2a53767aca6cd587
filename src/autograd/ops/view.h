// Shapes and strides: views of the same memory wherever strides allow one (reshape copies when they
// do not; contiguous copies what is not).
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
