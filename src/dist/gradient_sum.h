// The gradients of a step: the sum over its micro-batches, on one rank or several. Micro-batch m of
// a step with M of them runs on rank m % N. With OpOptions::deterministic every sum has the order
// of the micro-batches, so N ranks give the bits of one rank that runs all M.
#pragma once

#include <cstdint>
#include <memory>

#include "dist/buckets.h"
#include "dist/communicator.h"
#include "dist/sharded_weights.h"
#include "nn/arena.h"

namespace quern {

// A rank's part of a step: micro-batch `index` of its `count`.
struct MicroBatch {
  int64_t index = 0, count = 1;

  bool first() const { return index == 0; }
  bool last() const { return index + 1 == count; }
  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

class GradientSum {
 public:
  virtual ~GradientSum() = default;
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // Allocates the memory for steps of `count` micro-batches a rank. Call it before their first
  // begin(), outside of captures.
  virtual void prepare(int64_t count) = 0;

  // Enclose the forward and backward of each micro-batch. After the last finish() of a step the
  // arena's sums() are the sum over all micro-batches of all ranks, and so is `sums` of `values`
  // (at most 64 FP32 elements each).
  virtual void begin(const MicroBatch& part) = 0;
  virtual void finish(const Tensor& sums, const Tensor& values) = 0;

 protected:
  GradientSum() = default;
};

// ranks: null or of size 1 for one rank. The arena, the ranks and the weights outlive the result.
// With norm_partials (Optimizer::take_over_norm()) every rank gets the partial sums of the
// norm; of an arena that ranks share out, only this rank's slices of the buckets (dist/buckets.h)
// are summed. `weights`: those of such an arena; each backward reports its progress to them.
std::unique_ptr<GradientSum> make_gradient_sum(ParameterArena& arena, Communicator* ranks,
                                               BucketExchange exchange,
                                               const Tensor& norm_partials = {},
                                               ShardedWeights* weights = nullptr);

}  // namespace quern
