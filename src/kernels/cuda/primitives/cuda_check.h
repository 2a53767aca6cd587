// Turns a CUDA status into a quern::Error.
#pragma once

#include <cuda_runtime.h>

#include "base/error.h"

namespace quern::kernels::cuda {

// Throws naming `what` when a CUDA call failed.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // clears the error, so that the next call does not report it again
  fail(cat("cuda: ", what, " failed: ", cudaGetErrorString(status)));
}

}  // namespace quern::kernels::cuda
