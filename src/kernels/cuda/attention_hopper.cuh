// What Hopper's flash attention kernels share: who works on what, which keys a query sees, and
// where the kernels can run. A block is one producer warpgroup, whose first thread starts all
// copies, and consumer warpgroups that own 64 rows each.
#pragma once

#include <cstdint>
#include <iterator>

#include "kernels/attention.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/launch_hopper.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace quern::kernels::cuda {

// Forward: `warpgroups` consumers of 64 queries, `keys` a step. K and V each have a ring of
// `stages` tiles; Q, whose memory the output leaves through, one of q_stages. turns: consumers
// issue their products one after the other, so that one's softmax runs during another's products.
struct HopperForwardTile {
  int head_dim;
  bool causal;
  int warpgroups, keys, stages, q_stages;
  bool turns;
};

// Others that fit the registers, to be measured: 2 warpgroups with up to 192 keys for D 64, up to
// 176 for D 80, 128 or 144 for D 128; turns or none.
inline constexpr HopperForwardTile kHopperForwardTiles[] = {
    {64, true, 3, 128, 3, 2, true},  {64, false, 3, 128, 3, 2, true},
    {80, true, 3, 96, 3, 2, true},   {80, false, 2, 160, 3, 2, true},
    {128, true, 2, 128, 2, 2, true}, {128, false, 2, 160, 2, 2, true},
};
inline constexpr int kHopperForwardTileCount = static_cast<int>(std::size(kHopperForwardTiles));

constexpr int hopper_threads(int consumers) {
  return (1 + consumers) * kWarpgroupSize;
}
// Registers a thread, multiples of 8. One thread of each warpgroup have at most 65536 / 128 = 512
// together.
constexpr int producer_registers(int consumers) {
  return consumers == 2 ? 24 : 32;
}
constexpr int consumer_registers(int consumers) {
  return consumers == 2 ? 240 : 160;
}

// The sizes of AttentionShape as a kernel uses them. Extents are below 2^30 (hopper_extents_fit).
struct HopperShape {
  int B, Tq, Tk, H, Hk;
  bool causal;
  float scale, scale_log2;  // scores in natural units, and in units of log2

  explicit HopperShape(const AttentionShape& s)
      : B(static_cast<int>(s.B)),
        Tq(static_cast<int>(s.Tq)),
        Tk(static_cast<int>(s.Tk)),
        H(static_cast<int>(s.H)),
        Hk(static_cast<int>(s.Hk)),
        causal(s.causal),
        scale(static_cast<float>(s.scale)),
        scale_log2(static_cast<float>(s.scale * double{kLog2E})) {}

  // Query i sees the keys below this.
  __device__ __forceinline__ int keys_of(int i) const {
    return causal ? max(0, min(Tk, i + Tk - Tq + 1)) : Tk;
  }
};

inline bool hopper_extents_fit(const AttentionShape& s) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return s.Tq < kMost && s.Tk < kMost && s.B * s.H < kMost &&
         s.B * s.H * ceil_div(s.Tq, kWarpgroupRows) < kMost &&
         s.B * s.H * ceil_div(s.Tk, kWarpgroupRows) < kMost;
}

// The consumers' order: who issues products next. Warpgroup w waits at named barrier 1 + w, where
// the one before it arrives after its own turn. Each has as many turns as the others.
template <int kWarpgroups, bool kEnabled>
struct Turns {
  int warpgroup;

  __device__ __forceinline__ void begin() const {
    if (kEnabled && warpgroup == kWarpgroups - 1) pass();  // the first turn is warpgroup 0's
  }
  __device__ __forceinline__ void wait() const {
    if (kEnabled) named_barrier_sync(1 + warpgroup, 2 * kWarpgroupSize);
  }
  __device__ __forceinline__ void pass() const {
    if (kEnabled) named_barrier_arrive(1 + (warpgroup + 1) % kWarpgroups, 2 * kWarpgroupSize);
  }
  __device__ __forceinline__ void end() const {
    if (kEnabled && warpgroup == 0) wait();  // takes up the last one's arrival
  }
};

// 2^x, off by at most 2 ulp; x = -inf gives 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace quern::kernels::cuda
