// Shared by the score warpgroups of Hopper's backward attention: S^T and dP^T of 64 keys, P^T from
// S^T, and the way out for dV and dK.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_key_sums.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"

namespace quern::kernels::cuda {

// A score warpgroup's dK or dV, or both, are in scratch memory.
using PartsStored = NamedBarriers<kScoreWarpgroups, kWarpgroupSize>;

using ScoreSums = float[kBackwardQueries / 2];          // 64 keys by the queries of a tile
using ScoreWords = uint32_t[kBackwardQueries / 16][4];  // the same in BF16

// Computed at each use: values kept from step to step would cost registers.
__device__ __forceinline__ FragmentPlace fragment_of_thread() {
  return FragmentPlace(opaque(static_cast<int>(threadIdx.x)) % kWarpgroupSize);
}

// d = A B^T for 64 rows, from first_row on, of a tile A of K or V, and a tile B of queries.
template <int kTile>
__device__ __forceinline__ void multiply_keys(ScoreSums& d, const uint8_t* a, int first_row,
                                              const uint8_t* b) {
  using Keys = typename BackwardTile<kTile>::Keys;
  using Queries = typename BackwardTile<kTile>::Queries;
  forget(d);
  wgmma_fence();
  multiply_rows<Keys, Queries, BackwardTile<kTile>::kD>(d, Keys::k_major(a, first_row),
                                                        Queries::k_major(b));
  wgmma_commit();
}

// Which queries see a score warpgroup's keys.
struct VisibleKeys {
  int first_query = 0, keys_left = 0;  // the first query that sees the first key; keys from it on

  VisibleKeys() = default;
  __device__ __forceinline__ VisibleKeys(int first_key, const BackwardArguments& x)
      : first_query(first_key - x.plan.diagonal), keys_left(static_cast<int>(x.s.Tk) - first_key) {}

  // P^T of a tile of queries. Rows beyond Tk must be 0 too, since they add to dQ.
  template <class Columns>
  __device__ __forceinline__ void make_probabilities(ScoreWords& p, const ScoreSums& scores,
                                                     int tile, float scale_log2,
                                                     const Columns& lse) const {
    const int q0 = tile * kBackwardQueries;
    const bool masked = q0 < first_query + kWarpgroupRows - 1 || keys_left < kWarpgroupRows;
    if (masked) {
      const FragmentPlace place = fragment_of_thread();
      int first[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = place.row + 8 * r;
        first[r] = row < keys_left ? first_query + row - place.column - q0 : kBackwardQueries;
      }
      transposed_probabilities<true>(p, scores, scale_log2, lse, first);
    } else {
      transposed_probabilities<false>(p, scores, scale_log2, lse, {0, 0});
    }
  }
};

// Stores an item's part of `sums` (dV, dK or both) to scratch. With the last part, sums all parts
// and returns true.
template <int kTile, class... Sums>
__device__ __forceinline__ bool add_parts(typename BackwardTile<kTile>::Barriers& barriers,
                                          const BackwardArguments& x, const BackwardItem& item,
                                          int warpgroup, Sums&... sums) {
  constexpr int kSums = sizeof...(Sums);
  constexpr int kPart = kWarpgroupRows * BackwardTile<kTile>::kD / 4;  // float4 of one of them
  const int64_t head = item.b * x.s.Hk + item.kv_head;
  const int64_t place = (head * x.plan.key_tiles + item.key_tile) * kScoreWarpgroups + warpgroup;
  float4* const first =
      reinterpret_cast<float4*>(x.scratch.dkv) + place * x.plan.parts * kSums * kPart;
  int i = item.part * kSums;
  (store_part(first + i++ * kPart, sums), ...);
  const bool last =
      is_last_part(x.scratch.key_parts + place, x.plan.parts, barriers.parts_arrived[warpgroup],
                   [&] { PartsStored::sync(warpgroup); });
  if (!last) return false;
  i = 0;
  (sum_parts(sums, first + i++ * kPart, x.plan.parts, kSums * kPart), ...);
  return true;
}

// Store dV and dK of 64 keys of an item's tile, from first_row on.
template <int kTile, int kRegisters>
__device__ __forceinline__ void store_dv(const float (&dv)[kRegisters], const BackwardArguments& x,
                                         const BackwardItem& item, int first_row) {
  const int k0 = item.key_tile * BackwardTile<kTile>::kKeys + first_row;
  store_fragment(at(x.dv, x.s.dv_strides, item.b, k0, item.kv_head), x.s.dv_strides[1],
                 static_cast<int>(x.s.Tk) - k0, static_cast<int>(x.s.D), dv, 1.0f,
                 fragment_of_thread());
}
template <int kTile, int kRegisters>
__device__ __forceinline__ void store_dk(float (&dk)[kRegisters], const BackwardArguments& x,
                                         const BackwardItem& item, int first_row) {
  constexpr int kD = BackwardTile<kTile>::kD;
  const int k0 = item.key_tile * BackwardTile<kTile>::kKeys + first_row;
  const FragmentPlace place = fragment_of_thread();
  const auto tokens = static_cast<int>(x.s.Tk);
  rotate_back<kD, kD / 16>(dk, dk + kD / 4, x.rotary, k0 + place.row, tokens, place.column);
  store_fragment(at(x.dk, x.s.dk_strides, item.b, k0, item.kv_head), x.s.dk_strides[1], tokens - k0,
                 static_cast<int>(x.s.D), dk, static_cast<float>(x.s.scale), place);
}

}  // namespace quern::kernels::cuda
