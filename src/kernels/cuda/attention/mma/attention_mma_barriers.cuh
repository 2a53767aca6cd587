// The barriers of a block of the portable tensor-core attention's backward.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma/attention_mma.cuh"

namespace quern::kernels::cuda {

// The barriers at which the warps of a block wait. With two stages they begin every step together.
// With three, a warp continues once the others have written their dS of the previous step, half a
// step before its end. So while some warps multiply, others compute exponentials.
template <int kTile>
class StepBarriers {
 public:
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kStages = mma_backward_stages(tile);
  static constexpr bool kLoose = kStages > 2;
  static constexpr int kWarps = mma_backward_threads(tile) / kWarpSize;

  // A barrier of the block must follow.
  __device__ explicit StepBarriers(uint64_t* barriers) : barriers_(shared_address(barriers)) {
    if constexpr (kLoose) {
      if (threadIdx.x > 0) return;
      for (int i = 0; i <= kStages; ++i) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barriers_ + 8 * i), "r"(kWarps)
                     : "memory");
      }
    }
  }

  // Before step j: waits until its tile and dS of the previous step are there, and no warp reads
  // the stage of tile j + 1.
  __device__ __forceinline__ void begin(int j) const {
    if (!kLoose || j == 0) {
      wait_for_copies();
      __syncthreads();
      return;
    }
    wait(0, j - 1);
    if (j > 1) wait(1 + (j - 2) % kStages, (j - 2) / kStages);
  }
  // Signals that the warp has written its dS, and that its copies of the next tile are there.
  __device__ __forceinline__ void written() const {
    if (!kLoose) return;
    wait_for_copies();
    arrive(0);
  }
  // Signals that the warp no longer reads tile j.
  __device__ __forceinline__ void end(int j) const {
    if (kLoose) arrive(1 + j % kStages);
  }

 private:
  __device__ __forceinline__ void arrive(int barrier) const {
    __syncwarp();
    if (threadIdx.x % kWarpSize != 0) return;
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barriers_ +
                                                                                      8 * barrier)
                 : "memory");
  }
  // Waits for the barrier's completion number `phase`.
  __device__ __forceinline__ void wait(int barrier, int phase) const {
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
#if __CUDA_ARCH__ >= 900
          "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
#else
          "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
#endif
          " selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(barriers_ + 8 * barrier), "r"(phase & 1)
          : "memory");
    }
    __syncwarp();
  }

  uint32_t barriers_;  // dS written; then one for each stage
};

}  // namespace quern::kernels::cuda
