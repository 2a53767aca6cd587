// The blocks of a cluster: their ranks, their barrier, and accesses to each other's shared memory.
// Where there are no clusters, before compute capability 9.0, a block is its own cluster.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/shared_address.cuh"

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

// A barrier of all its threads in two halves: what was written before `arrive`, to shared or global
// memory, is seen after `wait`.
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
// The address, in the cluster's shared window, that block `rank` has for what is `mine` here.
__device__ __forceinline__ uint32_t address_in_cluster(const void* mine, uint32_t rank) {
  uint32_t theirs;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(theirs)
               : "r"(shared_address(mine)), "r"(rank));
  return theirs;
}
#endif

// Writes to the shared memory of block `rank` of the cluster, where `mine` is in this one.
__device__ __forceinline__ void store_in_cluster(float* mine, uint32_t rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in_cluster(mine, rank)), "f"(value)
               : "memory");
#else
  *mine = value;
#endif
}

// What lies in block `rank` of the cluster where `mine` lies in this one.
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
