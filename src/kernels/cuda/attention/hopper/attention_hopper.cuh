// Shared by Hopper's flash attention kernels: the sizes of a shape, and the keys that a query sees.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_plan.h"
#include "kernels/cuda/primitives/persistent.cuh"

namespace quern::kernels::cuda {

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
