// launch() with Hopper's options: clusters of blocks, and kernels that start before the previous
// one on the stream has ended (programmatic dependent launch). Such a kernel first does work that
// depends on no earlier kernel. Then every thread calls wait_for_previous(), before it touches
// memory that earlier kernels read or write. Both options, and cooperative launch (all blocks run
// at the same time), also work within a captured graph.
#pragma once

#include "kernels/cuda/primitives/cluster.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/partition.h"

namespace quern::kernels::cuda {

struct LaunchOptions {
  int cluster = 1;  // blocks along x that access each other's shared memory
  bool early = false;
  bool resident = false;  // all blocks run at the same time, so that they may wait for each other
};

// Whether the code of `kernel` that this device runs was compiled for compute capability 9.0 or
// later, which `cluster` and `early` need.
template <class... Parameters>
bool has_hopper_code(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
             "cudaFuncGetAttributes");
  return attributes.ptxVersion >= 90;
}

// Whether the binary has code of `kernel` for this GPU, and a block enough shared memory. Except on
// sm_90a a kernel's body is empty and has no barriers in static shared memory.
inline bool hopper_kernel_runs(const void* kernel, int64_t shared_bytes) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  const int64_t bytes = shared_bytes + static_cast<int64_t>(attributes.sharedSizeBytes);
  return attributes.binaryVersion == 90 && attributes.ptxVersion >= 90 &&
         attributes.sharedSizeBytes > 0 && bytes <= device_traits().shared_bytes_per_block;
}

// Whether all blocks of a grid can run on `stream` at the same time, as LaunchOptions::resident
// needs. Part of a GPU, as MPS and green contexts give it, may hold fewer blocks than the whole.
inline bool grid_is_resident(const void* kernel, int64_t blocks, int threads, int64_t shared_bytes,
                             Stream stream) {
  int each = 0;
  const bool known = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared_bytes)) == cudaSuccess &&
                     cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                         &each, kernel, threads, static_cast<size_t>(shared_bytes)) == cudaSuccess;
  if (!known) cudaGetLastError();
  return known && int64_t{each} * multiprocessors_of(stream) >= blocks;
}

// launch() of launch.cuh with options.
template <class... Parameters, class... Arguments>
void launch(const LaunchOptions& options, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Stream stream, Arguments&&... arguments) {
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config{};
  config.attrs = attributes;
  if (options.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(options.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (options.early) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (options.resident) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  launch_with(config, kernel, grid, block, shared_bytes, stream,
              std::forward<Arguments>(arguments)...);
}

// Waits until all earlier work on the stream has ended and its writes are visible. Returns at once
// if the kernel was not launched early.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start once all blocks have called this or ended.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace quern::kernels::cuda
