// The backward of the portable tensor-core attention: a block's tiles in shared memory, its warps
// and their barriers.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_backward.cuh"
#include "kernels/cuda/attention/mma/attention_mma_dq.cuh"
#include "kernels/cuda/primitives/named_barrier.cuh"

namespace quern::kernels::cuda {

struct MmaBackward : TensorBackward<bfloat16> {
  // dQ before the scale: (B, H, query tiles, parts) tiles of columns x features, in the order of
  // the accumulators: (warp, fragment, lane, 4).
  float* dq_sum;
};

// The addresses in shared memory of one tile: K; V; the stages of Q, dO and the statistics; two of
// dS^T; P^T, where warps share keys.
template <int kTile>
struct BackwardShared {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kThreads = mma_backward_threads(tile);
  static constexpr int kFeatures = mma_backward_features(tile);
  using Rows = SharedRows<tile.head_dim>;
  using ScoreRows = SharedRows<tile.columns>;
  static constexpr int kKeyBytes = tile.rows * Rows::kBytes;
  static constexpr int kQueryBytes = tile.columns * Rows::kBytes;
  static constexpr int kStageBytes = 2 * kQueryBytes + tile.columns * 8;
  static constexpr int kScoreBytes = tile.rows * ScoreRows::kBytes;
  static constexpr int kStages = mma_backward_stages(tile);
  static_assert(2 * kKeyBytes + kStages * kStageBytes +
                    (mma_backward_split(tile) > 1 ? 3 : 2) * kScoreBytes ==
                mma_backward_shared_bytes(tile));

  uint32_t keys, values, stages, scores;

  __device__ explicit BackwardShared(const void* shared)
      : keys(shared_address(shared)),
        values(keys + kKeyBytes),
        stages(values + kKeyBytes),
        scores(stages + kStages * kStageBytes) {}
  __device__ __forceinline__ uint32_t queries(int j) const {
    return stages + j % kStages * kStageBytes;
  }
  // Offset in a stage of the statistics of query `row`.
  static __device__ __forceinline__ uint32_t statistics_of(int row) {
    return 2 * kQueryBytes + row * 8;
  }
  __device__ __forceinline__ uint32_t ds(int j) const { return scores + j % 2 * kScoreBytes; }
  __device__ __forceinline__ uint32_t p() const { return scores + 2 * kScoreBytes; }
};

// A warp's share of a block's tile: its first key, query (of the scores) and feature.
template <int kTile>
struct BackwardWarp {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kSplit = mma_backward_split(tile);
  static constexpr int kKeys = mma_backward_warp_keys(tile);
  static constexpr int kQueries = tile.columns / kSplit;
  static constexpr int kFeatures = mma_backward_features(tile) / kSplit;
  static constexpr int kStep = mma_backward_step(tile);  // queries whose scores it holds at a time
  static_assert(kSplit == 1 || (kSplit == 2 && kStep == kQueries));

  int key = warp_index() / kSplit * kKeys;
  int query = warp_index() % kSplit * kQueries;
  int feature = warp_index() % kSplit * kFeatures;

  // The warps that have the same keys.
  using SameKeys = NamedBarriers<tile.rows / kKeys, kSplit * kWarpSize>;
  __device__ __forceinline__ void synchronize() const { SameKeys::sync(warp_index() / kSplit); }
};

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
