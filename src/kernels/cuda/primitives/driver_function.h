// Functions of CUDA's driver library, which is not linked: the runtime returns their addresses.
#pragma once

#include <cuda_runtime.h>

namespace quern::kernels::cuda {

// The function as of a CUDA version: driver_function<PFN_cuStreamGetCtx_v9020>("cuStreamGetCtx",
// 9020), with <cudaTypedefs.h>. Null: the driver has none.
template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  const bool is_there = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<Function>(entry) : nullptr;
}

}  // namespace quern::kernels::cuda
