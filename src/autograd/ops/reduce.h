// The reduction family: sum, mean and maximum along one dimension (-1: the last) or over
// everything. Results have x's dtype; sums are accumulated in FP32 (FP64 for f64).
#pragma once

#include "autograd/variable.h"

namespace quern {

// The reduced dimension is dropped, or kept with extent 1.
Variable sum(const Variable& x, int dim, bool keepdim = false);
Variable mean(const Variable& x, int dim, bool keepdim = false);
Variable sum_squares(const Variable& x, int dim, bool keepdim = false);  // the sum of x^2

// Over all elements; the result has shape ().
Variable sum(const Variable& x);
Variable mean(const Variable& x);

struct MaxResult {
  Variable values;
  Tensor indices;  // i64: the first index of the maximum
};
MaxResult max(const Variable& x, int dim, bool keepdim = false);

}  // namespace quern
