// Shared by Hopper's flash attention kernels: the tiles of the forward, and the sizes of a shape
// with the keys that a query sees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/attention.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_plan.h"
#include "kernels/cuda/primitives/persistent.cuh"

namespace quern::kernels::cuda {

// Forward: `warpgroups` consumers of 64 queries, `keys` a step. K and V each have a ring of
// `stages` tiles. Q has one of q_stages; the output leaves through its memory. turns: consumers
// issue their products in turn, so that one's softmax runs during another's products.
struct HopperForwardTile {
  int head_dim;
  bool causal;
  int warpgroups, keys, stages, q_stages;
  bool turns;
};

// Others that fit the registers: 2 warpgroups with up to 192 keys for D 64, up to 176 for D 80, up
// to 160 for D 96 and 128; turns or none. For D 256, 80 keys are 1 to 5 % slower than 64. From
// D 192 on a second stage of Q does not fit. Sorted by head_dim.
inline constexpr HopperForwardTile kHopperForwardTiles[] = {
    {64, true, 3, 128, 3, 2, true},  {64, false, 3, 128, 3, 2, true},
    {80, true, 3, 96, 3, 2, true},   {80, false, 2, 160, 3, 2, true},
    {96, true, 2, 128, 3, 2, true},  {96, false, 2, 144, 3, 2, true},
    {128, true, 2, 128, 2, 2, true}, {128, false, 2, 128, 2, 2, true},
    {192, true, 2, 96, 2, 1, true},  {192, false, 2, 96, 2, 1, true},
    {256, true, 2, 64, 2, 1, true},  {256, false, 2, 64, 2, 1, true},
};
static_assert(std::ranges::is_sorted(kHopperForwardTiles, {}, &HopperForwardTile::head_dim));

// The sizes of AttentionShape as a kernel uses them. Extents are below 2^30 (hopper_extents_fit).
struct HopperShape {
  int B, Tq, Tk, H, Hk, D;
  bool causal;
  float scale, scale_log2;  // scores in natural units, and in units of log2

  explicit HopperShape(const AttentionShape& s)
      : B(static_cast<int>(s.B)),
        Tq(static_cast<int>(s.Tq)),
        Tk(static_cast<int>(s.Tk)),
        H(static_cast<int>(s.H)),
        Hk(static_cast<int>(s.Hk)),
        D(static_cast<int>(s.D)),
        causal(s.causal),
        scale(static_cast<float>(s.scale)),
        scale_log2(static_cast<float>(s.scale * double{kLog2E})) {}

  // Query i sees the keys below this.
  __device__ __forceinline__ int keys_of(int i) const {
    return causal ? max(0, min(Tk, i + Tk - Tq + 1)) : Tk;
  }
};

}  // namespace quern::kernels::cuda
