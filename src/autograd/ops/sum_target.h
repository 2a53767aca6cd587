// Sums over broadcast dimensions, and gradients that a kernel accumulates itself.
#pragma once

#include "autograd/tape.h"

namespace quern::detail {

// Sums x (contiguous) over the dimensions that broadcasting `shape` to x's shape stretched. The
// result has x's dtype, or `dtype`, which may be f32 for a bf16 x.
Tensor sum_to(const Tensor& x, const Shape& shape);
Tensor sum_to(const Tensor& x, const Shape& shape, DType dtype);

// The gradient of `input` for a kernel that writes or adds only in `dtype`. `sum` is undefined if
// the input needs no gradient; else pass it and `add` to the kernel, then call finish().
class SumTarget {
 public:
  SumTarget(Gradients& g, int input, DType dtype);
  void finish();

  Tensor sum;
  bool add = false;

 private:
  Gradients::Target target_;
};

}  // namespace quern::detail
