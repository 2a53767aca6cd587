// The blocks of a cluster: their ranks, their barrier, and accesses to each other's shared memory.
// Before compute capability 9.0 there are no clusters: a block is its own cluster.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/instructions.cuh"

namespace quern::kernels::cuda {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
  return size;
}

// A barrier of the cluster's threads in two halves. After `wait`, writes to shared or global memory
// before any thread's `arrive` are visible.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

#if __CUDA_ARCH__ >= 900
// Address, in the cluster's shared window, of block `rank`'s counterpart of `mine`.
__device__ __forceinline__ uint32_t address_in_cluster(const void* mine, uint32_t rank) {
  uint32_t theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(theirs)
               : "r"(shared_address(mine)), "r"(rank));
  return theirs;
}
#endif

// Writes `value` to the counterpart of `mine` in the shared memory of block `rank`.
__device__ __forceinline__ void store_in_cluster(float* mine, uint32_t rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in_cluster(mine, rank)), "f"(value)
               : "memory");
#else
  *mine = value;
#endif
}

// Reads the counterpart of `mine` in the shared memory of block `rank`.
__device__ __forceinline__ uint64_t load_in_cluster(const uint64_t* mine, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];"
               : "=l"(value)
               : "r"(address_in_cluster(mine, rank))
               : "memory");
  return value;
#else
  return *mine;
#endif
}

}  // namespace quern::kernels::cuda
