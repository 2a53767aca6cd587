// Hardware instructions for which C++ has no name: a fast power of two, two floats rounded to BF16
// at once, addresses of shared memory, and registers that warps pass to each other.
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

// The address of a shared-memory object in the shared window, as PTX takes it.
__device__ __forceinline__ uint32_t shared_address(const void* object) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(object));
}

// Moves registers between warps of a block (PTX setmaxnreg, compute capability 9.0a). kCount:
// registers that each thread then has. The consumers take what the producer gives back.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace quern::kernels::cuda
