// Which of several algorithms computes one product the fastest.
#pragma once

#include <functional>
#include <vector>

#include "base/stream.h"
#include "kernels/cuda/gemm/gemm_algorithms.h"

namespace quern::kernels::cuda {

// How to run what is timed; both put work on the stream.
struct GemmTrial {
  std::function<bool(const GemmAlgorithm&)> multiply;  // false: the library refuses the algorithm
  std::function<void()> evict;  // leaves nothing of the operands in the L2 cache
};

// The fastest of `candidates`, of which the first is the library's favourite; `before` is the
// algorithm used until now, or null.
//
// First round: each alone, from a cold L2 cache, as a product meets its weights in a training step:
// the median of several runs. A product of less than 100 us is decided by that; the favourite stays
// unless another one is clearly faster.
//
// Final: for longer products the best few, the favourite and `before` run back to back, some 400 ms
// each. Steps of large products run at the chip's power limit, where the clock falls: what counts
// is the time under that load, which is not the order of the times alone. Takes three to five
// seconds a product.
GemmMeasurement find_fastest(const std::vector<GemmAlgorithm>& candidates,
                             const GemmAlgorithm* before, const GemmTrial& trial, Stream stream);

}  // namespace quern::kernels::cuda
