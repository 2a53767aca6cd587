// Registers that move from some warps of a block to others (PTX setmaxnreg, compute
// capability 9.0a).
#pragma once

namespace quern::kernels::cuda {

// Registers a thread: the producer gives back what the consumers then take.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace quern::kernels::cuda
