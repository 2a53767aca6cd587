// The shares of dQ that the portable tensor-core attention's backward sums in global memory, in
// turns (attention_turn.cuh): a warp's part of a tile, and its addition.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_turn.cuh"
#include "kernels/cuda/attention/mma/attention_mma.cuh"

namespace quern::kernels::cuda {

// A warp's part of a tile of dQ.
template <int kTile>
struct DqPart {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr MmaDqPart part = mma_dq_part(tile);
  static constexpr int kWarps = mma_backward_threads(tile) / kWarpSize;
  static constexpr int kFeatures = mma_backward_features(tile);
  static constexpr int kParts = tile.head_dim / kFeatures;   // blocks that share a tile of keys
  static constexpr int kAcross = kFeatures / part.features;  // warps side by side
  static constexpr int kM = part.queries / kMmaRowsPerFragment;
  static constexpr int kN = part.features / 8;
  static constexpr int kTileFloats = tile.columns * kFeatures;
  static_assert(part.queries > 0);

  static __device__ __forceinline__ int first_query() {
    return warp_index() / kAcross * part.queries;
  }
  static __device__ __forceinline__ int first_feature() {
    return warp_index() % kAcross * part.features;
  }
  // Offset of fragment (0, 0) from the tile's start. Each next one is 4 floats a lane further.
  static __device__ __forceinline__ int offset() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    return warp_index() * (kTileFloats / kWarps) + lane * 4;
  }
};

// Fragments of dS as A, read from dS^T in shared memory. `address`: of the first key, at the warp's
// first query, plus column_lane().
template <int kColumns>
struct TransposedRows {
  uint32_t address;
  __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
    ldmatrix_transposed(a, address + k * 16 * SharedRows<kColumns>::kBytes + m * 32);
  }
};

// sum = dS K for the warp's part. `ds`: address of dS^T, a row for each key; `keys`: of K's rows,
// at the first feature of the block.
template <int kTile>
__device__ __forceinline__ void multiply_dq(float (&sum)[DqPart<kTile>::kM][DqPart<kTile>::kN][4],
                                            uint32_t ds, uint32_t keys) {
  using Part = DqPart<kTile>;
  constexpr AttentionTile tile = Part::tile;
  constexpr int kSteps = tile.rows / 16 < 8 ? tile.rows / 16 : 8;  // side by side
  using DsRows = SharedRows<tile.columns>;
  using KeyRows = SharedRows<tile.head_dim>;
  clear(sum);
  ds += DsRows::column_lane() + Part::first_query() * 2;
  keys += KeyRows::square_lane() + Part::first_feature() * 2;
#pragma unroll 1
  for (int key = 0; key < tile.rows; key += 16 * kSteps) {
    multiply_add<tile.head_dim, Part::part.features, kSteps>(
        sum, TransposedRows<tile.columns>{ds + key * DsRows::kBytes}, keys + key * KeyRows::kBytes);
  }
}

// dq_sum = sum if `first`, else dq_sum += sum. dq_sum points at the warp's offset().
template <int kM, int kN>
__device__ __forceinline__ void write_dq(float* dq_sum, const float (&sum)[kM][kN][4], bool first) {
  const auto each = [&](auto write) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) write(dq_sum + (m * kN + n) * (4 * kWarpSize), sum[m][n]);
    }
  };
  if (first) {
    each([](float* p, const float(&x)[4]) { store_global_16(p, x); });
  } else {
    each([](float* p, const float(&x)[4]) { add_global_16(p, x); });
  }
}

}  // namespace quern::kernels::cuda
