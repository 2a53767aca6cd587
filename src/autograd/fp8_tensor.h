// A matrix in FP8: its values and their scales as one value.
#pragma once

#include "kernels/fp8.h"
#include "tensor/tensor.h"

namespace quern::detail {

// (rows, depth), both tensors laid out as kernels/fp8.h says.
struct Fp8Tensor {
  Tensor values;  // E4M3, as bytes
  Tensor scales;
  kernels::ScaleBlocks blocks = kernels::ScaleBlocks::rows;
  int64_t rows = 0, depth = 0;

  bool defined() const { return values.defined(); }
};

}  // namespace quern::detail
