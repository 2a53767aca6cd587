// Barriers in shared memory (PTX mbarrier). A barrier counts phases 0, 1, 2, ...: a phase ends when
// all expected arrivals have come and all announced bytes have landed. Threads wait for the end of
// a phase by its parity. Waiting for parity 1 on a fresh barrier returns at once, as if a phase
// before the first had ended.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/instructions.cuh"

namespace quern::kernels::cuda {

// Lies in shared memory. One thread calls `init` on each barrier, then barriers_ready, and then the
// block synchronizes.
struct MBarrier {
  uint64_t state;

  __device__ __forceinline__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Arrives at the counterpart of this barrier in the shared memory of block `rank`.
  __device__ __forceinline__ void arrive_in_cluster(uint32_t rank) {
    asm volatile(
        "{\n"
        ".reg .b32 theirs;\n"
        "mapa.shared::cluster.u32 theirs, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [theirs];\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(rank)
        : "memory");
  }
  // Arrives, and makes the phase also wait for `bytes` that TMA will write.
  __device__ __forceinline__ void arrive_expecting(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  // Returns once the phase of this parity has ended. Writes before the arrivals are then visible.
  __device__ __forceinline__ void wait(uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// Makes initialized barriers visible to TMA. The thread that called `init` calls this.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace quern::kernels::cuda
