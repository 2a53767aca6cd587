#include "kernels/cuda/primitives/partition.h"

#include <cudaTypedefs.h>

#include <algorithm>

#include "kernels/cuda/primitives/cuda_check.h"
#include "kernels/cuda/primitives/driver_function.h"

namespace quern::kernels::cuda {

int multiprocessors_of(Stream stream) {
  static const auto context_of = driver_function<PFN_cuStreamGetCtx_v9020>("cuStreamGetCtx", 9020);
  static const auto resource_of =
      driver_function<PFN_cuCtxGetDevResource_v12040>("cuCtxGetDevResource", 12040);
  int device = 0, all = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  if (context_of == nullptr || resource_of == nullptr) return all;
  CUcontext context = nullptr;
  CUdevResource part{};
  if (context_of(static_cast<CUstream>(stream.handle), &context) != CUDA_SUCCESS) return all;
  if (resource_of(context, &part, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return all;
  return std::min(all, static_cast<int>(part.sm.smCount));
}

}  // namespace quern::kernels::cuda
