// Creates the objects that GemmResources points to; the Context owns them. Plain pointers, so that
// its users need no CUDA header.
#pragma once

#include "kernels/gemm.h"

namespace quern::kernels::cuda {

void* create_gemm_handle();  // a cublasLtHandle_t of the current device
void destroy_gemm_handle(void* handle) noexcept;

GemmAlgorithms* create_gemm_algorithms();  // empty, for the current device and this cuBLASLt
void destroy_gemm_algorithms(GemmAlgorithms* algorithms) noexcept;

}  // namespace quern::kernels::cuda
