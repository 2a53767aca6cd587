// Bulk copies between global and shared memory (PTX cp.async.bulk), and the groups of stores that a
// thread waits for. One thread issues each copy.
#pragma once

#include "kernels/cuda/primitives/mbarrier.cuh"

namespace quern::kernels::cuda {

// Copies `bytes` (a multiple of 16) to shared memory; they count towards the barrier's phase.
__device__ __forceinline__ void load_bulk_async(void* shared, const void* global, int bytes,
                                                MBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

// Copies `bytes` of shared memory to global memory; add_bulk_async adds them to the floats there.
// The threads that wrote the shared memory call fence_async_proxy and synchronize first.
__device__ __forceinline__ void store_bulk_async(float* global, const void* shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void add_bulk_async(float* global, const void* shared, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared_address(shared)), "r"(bytes)
      : "memory");
}

// Ends a group of this thread's stores.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's store groups still read their shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until at most kPending of this thread's store groups are incomplete.
template <int kPending>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Orders this thread's ordinary writes to shared memory before reads of it by TMA or wgmma.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace quern::kernels::cuda
