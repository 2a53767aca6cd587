// Starts kernels and sizes their grids. launch_hopper.cuh adds the options of Hopper.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/stream.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/primitives/cuda_check.h"

namespace quern::kernels::cuda {

// Shared memory of a block, static and dynamic, above which a kernel has to opt in; and the most
// static memory of a kernel that also has dynamic memory.
inline constexpr int kPortableSharedBytes = 48 << 10, kMostStaticBytes = 16 << 10;
inline constexpr int kMaxGridYZ = 65535;

// Blocks of a grid-stride loop: enough to fill any GPU many times over; the loop covers the rest.
// They depend on the size alone, so a sum split over blocks is split alike on every device.
inline dim3 grid_stride_blocks(int64_t items, int64_t items_per_block) {
  constexpr int64_t kMaxBlocks = 1 << 16;
  const int64_t blocks = ceil_div(items, items_per_block);
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

// One block an item, along x: the kernel reads blockIdx.x and does not loop.
inline dim3 one_block_each(int64_t items) {
  QUERN_CHECK(items <= INT32_MAX, "cuda: a grid of ", items, " blocks, expected at most 2^31 - 1");
  return dim3(static_cast<unsigned>(items));
}

// Traits of the current device, except hopper_code.
inline DeviceTraits device_traits() {
  int device = 0;
  DeviceTraits traits;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(
      cudaDeviceGetAttribute(&traits.multiprocessors, cudaDevAttrMultiProcessorCount, device),
      "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&traits.shared_bytes_per_block,
                                    cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "cudaDeviceGetAttribute");
  return traits;
}

// Starts `kernel` with a configuration that may have attributes. See launch().
template <class... Parameters, class... Arguments>
void launch_with(cudaLaunchConfig_t config, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                 size_t shared_bytes, Stream stream, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > kPortableSharedBytes - kMostStaticBytes) {
    check_cuda(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "opting in to shared memory");
  }
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  const cudaError_t status =
      cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (status == cudaSuccess) [[likely]]
    return;
  const char* name = nullptr;
  if (cudaFuncGetName(&name, entry) != cudaSuccess || name == nullptr) name = "a kernel";
  check_cuda(status,
             cat("launch of ", name, " (grid ", grid.x, "x", grid.y, "x", grid.z, ", block ",
                 block.x, "x", block.y, "x", block.z, ", shared ", shared_bytes, " bytes)")
                 .c_str());
}

// Starts `kernel`; throws, naming it, when it cannot start. Ignores an empty grid. Arguments
// convert to the kernel's parameter types as in a function call. shared_bytes is dynamic shared
// memory, for which the kernel is opted in where needed.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Stream stream, Arguments&&... arguments) {
  launch_with({}, kernel, grid, block, shared_bytes, stream, std::forward<Arguments>(arguments)...);
}

}  // namespace quern::kernels::cuda
