// Moves registers between warps of a block (PTX setmaxnreg, compute capability 9.0a).
#pragma once

namespace quern::kernels::cuda {

// kCount: registers that each thread then has. The consumers take what the producer gives back.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace quern::kernels::cuda
