// The weights of ranks that each update a share of them (parallel = zero1): a rank's new weights
// reach the others while the next step's forward runs.
#pragma once

#include <vector>

#include "dist/buckets.h"
#include "nn/arena.h"
#include "tensor/cuda_runtime.h"

namespace quern {

class ShardedWeights {
 public:
  // Every rank has all weights at first. The arena and the ranks outlive this.
  ShardedWeights(ParameterArena& arena, Communicator& ranks, BucketExchange exchange);
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  const OptimizerShare& share() const { return share_; }

  // Before each step, also one that replays a graph.
  void begin_step() { complete_ = false; }
  // Around its first forward. In between, a parameter's first use waits until its bucket has
  // arrived; on the CPU begin_forward() waits for all.
  void begin_forward();
  void end_forward();

  // Gives every rank the values and copies of all weights, after steps. Does nothing a second time.
  void complete();

  // A share's tensor put together, in host memory: the first rank's result. Others get none.
  std::vector<OptimizerBuffer> gathered(const std::vector<OptimizerBuffer>& shares) const;

 private:
  void wait_for(size_t bucket);
  void share_fp32(kernels::cuda::Stream stream);

  ParameterArena& arena_;
  Communicator& ranks_;
  std::vector<Bucket> buckets_;
  OptimizerShare share_;
  std::vector<RankPiece> fp32_;  // weights that are read in FP32 beside BF16 copies
  bool complete_ = true;
  cuda::OwnedStream side_;  // of the gathers, on GPUs
  cuda::Event forked_;
  std::vector<cuda::Event> arrived_;  // of each bucket
  std::vector<bool> awaited_;         // in this forward
};

}  // namespace quern
