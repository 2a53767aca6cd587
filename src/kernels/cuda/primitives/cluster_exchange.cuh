// Sums and maxima of 64-bit integers over all threads of a cluster: exact, whatever the order.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

inline constexpr int kExchangeBlocks = 8;

struct Sum64 {
  static __device__ uint64_t identity() { return 0; }
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Max64 {
  static __device__ uint64_t identity() { return 0; }
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// Combines numbers over a cluster of up to kExchangeBlocks blocks of kThreads threads. All threads
// of the cluster make the same calls.
template <int kThreads>
class Exchange {
 public:
  static constexpr int kWarps = kThreads / kWarpSize;
  struct Memory {
    uint64_t warps[2][3][kWarps], block[2][3], result[2][3], before[2];
  };
  __device__ explicit Exchange(Memory& memory) : memory_(memory) {}

  template <class Op, int kCount>
  __device__ void all(uint64_t (&x)[kCount], Op op) {
    gather(x, op);
    if (threadIdx.x < kWarpSize) {  // each lane reads the number of one block
      const int i = static_cast<int>(threadIdx.x) / kExchangeBlocks;
      const uint64_t combined =
          warp_reduce<Op, kExchangeBlocks>(theirs(i, i < kCount, Op::identity()), op);
      if (threadIdx.x % kExchangeBlocks == 0 && i < kCount) memory_.result[turn_][i] = combined;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = memory_.result[turn_][i];
  }
  template <class Op>
  __device__ uint64_t all(uint64_t x, Op op) {
    uint64_t one[1] = {x};
    all(one, op);
    return one[0];
  }
  // Returns the sum over all threads; `before` is the sum over the blocks of lower rank.
  __device__ uint64_t sum(uint64_t x, uint64_t& before) {
    uint64_t one[1] = {x};
    gather(one, Sum64{});
    if (threadIdx.x < kWarpSize) {
      const uint64_t block = theirs(0, threadIdx.x < kExchangeBlocks, 0);
      const uint64_t total = warp_reduce<Sum64, kExchangeBlocks>(block, Sum64{});
      const uint64_t earlier = threadIdx.x < cluster_rank() ? block : 0;
      const uint64_t earlier_sum = warp_reduce<Sum64, kExchangeBlocks>(earlier, Sum64{});
      if (threadIdx.x == 0) {
        memory_.result[turn_][0] = total;
        memory_.before[turn_] = earlier_sum;
      }
    }
    __syncthreads();
    before = memory_.before[turn_];
    return memory_.result[turn_][0];
  }

 private:
  // Combines x within each block into `block`. The two halves of Memory alternate, so that no
  // thread overwrites numbers that others still read.
  template <class Op, int kCount>
  __device__ void gather(uint64_t (&x)[kCount], Op op) {
    turn_ ^= 1;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint64_t combined = warp_reduce(x[i], op);
      if (lane == 0) memory_.warps[turn_][i][warp] = combined;
    }
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint64_t mine = lane < kWarps ? memory_.warps[turn_][i][lane] : Op::identity();
        const uint64_t combined = warp_reduce(mine, op);
        if (lane == 0) memory_.block[turn_][i] = combined;
      }
    }
    cluster_barrier();
  }
  // Number i of the block whose rank is this lane modulo kExchangeBlocks; `otherwise` if absent.
  __device__ uint64_t theirs(int i, bool present, uint64_t otherwise) const {
    const uint32_t rank = threadIdx.x % kExchangeBlocks;
    if (!present || rank >= cluster_size()) return otherwise;
    return load_in_cluster(&memory_.block[turn_][i], rank);
  }
  Memory& memory_;
  int turn_ = 0;
};

}  // namespace quern::kernels::cuda
