// Sharded weights: each rank updates a share (parallel = zero1, zero2, fsdp). The other ranks
// receive a rank's new weights while the forward of the next step runs. Under fsdp a block's
// weights arrive one block before their use, in the forward and again in the backward, at one of
// two places at which the blocks take turns.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist/buckets.h"
#include "nn/arena.h"
#include "optim/optimizer.h"
#include "tensor/cuda_runtime.h"

namespace quern {

class ShardedWeights {
 public:
  // The arena has the layout_of() of the same exchange. It and the ranks outlive this.
  ShardedWeights(ParameterArena& arena, Communicator& ranks, BucketExchange exchange);
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  // Call it before each step, also before one that replays a graph.
  void begin_step() { complete_ = false; }
  // Enclose the forward and backward of each micro-batch, or a forward alone. In between, a
  // parameter's first use waits until its bucket has arrived. On the CPU it has arrived when its
  // collective returns.
  void begin_micro_batch(bool first);
  void end_micro_batch();
  // In between: the backward has written the first, or the last, gradient of a bucket.
  void enter_backward(size_t bucket);
  void leave_backward(size_t bucket);

  // The stream of the collectives, on GPUs.
  kernels::cuda::Stream stream() { return side_; }

  // During its lifetime every rank has all weights, and ops read them without a collective: for
  // work between steps.
  class Whole {
   public:
    ~Whole();
    Whole(const Whole&) = delete;
    Whole& operator=(const Whole&) = delete;

   private:
    friend class ShardedWeights;
    Whole(ShardedWeights& weights, std::vector<Tensor> blocks);

    ShardedWeights& weights_;
    std::vector<Tensor> blocks_;  // memory of the blocks that take turns
  };
  // Every rank calls this at the same time. When one lacks the memory, all get null, and its
  // message in `lacking`.
  std::unique_ptr<Whole> whole(std::string& lacking);

  // The buffer's slices, one behind the other, in host memory, gathered from the ranks' shares. A
  // collective; ranks may name different slices.
  Tensor gathered(const OptimizerBuffer& share) const;

 private:
  void gather(size_t bucket, const Tensor& to, int64_t place, kernels::cuda::Stream stream);
  void gather_home(size_t bucket, kernels::cuda::Stream stream);
  void gather_ahead();
  void on_use(size_t bucket);
  void bring(size_t bucket);
  int64_t place_of(const Bucket& bucket) const { return arena_.layout().weights.of(bucket.begin); }
  Placement place_alone(size_t bucket) const;  // in a buffer of its own
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
  size_t next_ = 0;                            // first bucket that the forward has not gathered yet
  int ahead_ = 0;                              // the last turn that the forward may gather
  bool first_ = true;                          // micro-batch of a step
  bool in_forward_ = false, running_ = false;  // running: within a micro-batch
  std::array<size_t, 2> in_place_{SIZE_MAX, SIZE_MAX};  // the blocks, where they take turns
  cuda::OwnedStream side_;                              // of the gathers, on GPUs
  cuda::Event forked_;
  std::vector<cuda::Event> arrived_;  // of each bucket
  std::vector<bool> awaited_;         // since its last gather
};

}  // namespace quern
