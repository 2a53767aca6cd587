// The weights of ranks that each update a share of them (parallel = zero1, zero2, fsdp). A rank's
// new weights reach the others while the next step's forward runs. Under fsdp a block's weights
// have one of two places while they are used, and arrive one block ahead, in the forward and again
// in the backward.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dist/buckets.h"
#include "nn/arena.h"
#include "optim/optimizer.h"
#include "tensor/cuda_runtime.h"

namespace quern {

class ShardedWeights {
 public:
  // arena: with layout_of() of the same exchange. It and the ranks outlive this.
  ShardedWeights(ParameterArena& arena, Communicator& ranks, BucketExchange exchange);
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  // Before each step, also one that replays a graph.
  void begin_step() { complete_ = false; }
  // Around the forward and backward of each micro-batch, or a forward alone. In between, a
  // parameter's first use waits until its bucket has arrived; on the CPU a bucket has when its
  // collective returns.
  void begin_micro_batch(bool first);
  void end_micro_batch();
  // Within: the backward has written the first gradient of a bucket; the last one.
  void enter_backward(size_t bucket);
  void leave_backward(size_t bucket);

  // The stream of the collectives, on GPUs.
  kernels::cuda::Stream stream() { return side_; }

  // While it lives, ops read the weights of all ranks on each, without a collective: for work
  // between steps. Every rank makes one at the same time.
  class Whole {
   public:
    explicit Whole(ShardedWeights& weights);
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    ShardedWeights& weights_;
    std::vector<Tensor> blocks_;  // where they have no places of their own
  };

  // Elements [begin, end) of the whole buffer that the ranks have shares of, in host memory. A
  // collective, in which each rank asks for a range of its own.
  Tensor gathered(const OptimizerBuffer& share, int64_t begin, int64_t end) const;

 private:
  void gather(size_t bucket, const Tensor& to, int64_t place, kernels::cuda::Stream stream);
  void gather_home(size_t bucket, kernels::cuda::Stream stream);
  void gather_ahead();
  void on_use(size_t bucket);
  void bring(size_t bucket);
  int64_t place_of(const Bucket& bucket) const { return arena_.layout().weights.of(bucket.begin); }
  size_t& in_place(size_t bucket) { return in_place_[buckets_[bucket].turn % 2]; }
  void wait_for(size_t bucket);
  void fork();
  void share_vectors(kernels::cuda::Stream stream);

  ParameterArena& arena_;
  Communicator& ranks_;
  std::vector<Bucket> buckets_;
  bool turns_;
  std::vector<size_t> blocks_;                 // buckets that are blocks
  std::vector<RankPiece> vectors_;             // bytes of arena.vectors()
  size_t first_vector_ = SIZE_MAX;             // the first bucket that has one
  bool complete_ = false;                      // every rank has all weights as they are
  size_t next_ = 0;                            // bucket of the forward that has not been called for
  int ahead_ = 0;                              // the last turn whose place is free in the forward
  bool first_ = true;                          // micro-batch of a step
  bool in_forward_ = false, running_ = false;  // running: within a micro-batch
  std::array<size_t, 2> in_place_{SIZE_MAX, SIZE_MAX};  // the blocks, where they take turns
  cuda::OwnedStream side_;                              // of the gathers, on GPUs
  cuda::Event forked_;
  std::vector<cuda::Event> arrived_;  // of each bucket
  std::vector<bool> awaited_;         // since it was last called for
};

}  // namespace quern
