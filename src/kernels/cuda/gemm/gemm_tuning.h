// Finds the fastest of several algorithms for one product.
#pragma once

#include <functional>
#include <vector>

#include "base/stream.h"
#include "kernels/gemm_algorithms.h"

namespace quern::kernels::cuda {

// Runs the timed product. Both functions put work on the stream.
struct GemmTrial {
  std::function<bool(const GemmAlgorithm&)> multiply;  // false: the library refuses the algorithm
  std::function<void()> evict;                         // removes the operands from the L2 cache
};

// Returns the fastest of `candidates`, whose first is the library's favourite. `before` is the
// algorithm used until now, or null.
//
// First round: each alone, from a cold L2 cache, as in a training step; the median of several runs.
// It decides products below 100 us: the favourite stays unless another one is clearly faster.
//
// Final: for longer products the best few, the favourite and `before` run back to back, some 400 ms
// each. Steps of large products run at the chip's power limit, where the clock falls. The time
// under that load counts; it ranks algorithms differently. Takes three to five seconds a product.
GemmMeasurement find_fastest(const std::vector<GemmAlgorithm>& candidates,
                             const GemmAlgorithm* before, const GemmTrial& trial, Stream stream);

}  // namespace quern::kernels::cuda
