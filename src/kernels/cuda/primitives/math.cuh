// Hardware instructions for which C++ has no name: a fast power of two, and two floats rounded to
// BF16 at once.
#pragma once

#include <cstdint>

namespace quern::kernels::cuda {

// 2^x within 2 units of the last place. 2^-inf is 0, and so are results below 2^-126.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Packs two floats as BF16, rounded to nearest even; `low` (smaller column) is the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace quern::kernels::cuda
