#include "kernels/cuda/gemm/gemm_handle.h"

#include <cublasLt.h>

#include "kernels/cuda/primitives/cuda_check.h"
#include "kernels/gemm_algorithms.h"

namespace quern::kernels::cuda {

void* create_gemm_handle() {
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = cublasLtCreate(&handle);
  QUERN_CHECK(status == CUBLAS_STATUS_SUCCESS,
              "gemm: cublasLtCreate failed: ", cublasLtGetStatusString(status));
  return handle;
}

void destroy_gemm_handle(void* handle) noexcept {
  if (handle != nullptr) cublasLtDestroy(static_cast<cublasLtHandle_t>(handle));
}

GemmAlgorithms* create_gemm_algorithms() {
  int device = 0;
  cudaDeviceProp properties;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return new GemmAlgorithms(cat(properties.name, ", cuBLASLt ", cublasLtGetVersion()));
}

void destroy_gemm_algorithms(GemmAlgorithms* algorithms) noexcept {
  delete algorithms;
}

}  // namespace quern::kernels::cuda
