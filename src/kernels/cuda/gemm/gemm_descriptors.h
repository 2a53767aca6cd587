// The description of one product for cuBLASLt. The library is column-major; a row-major matrix is
// its transpose there. So D = op(A) op(B) is requested as D^T = op(B)^T op(A)^T: the operands
// change places and nothing else changes.
#pragma once

#include <cublasLt.h>

#include "kernels/gemm_algorithms.h"

namespace quern::kernels::cuda {

// Throws with the product's sizes unless status is a success.
void check_cublas(cublasStatus_t status, const char* what, const GemmProblem& p);

cudaDataType_t cuda_type(int64_t dtype);                 // of a DType value or kFp8
cublasComputeType_t compute_type(const GemmProblem& p);  // sums in FP32
cublasLtMatmulAlgo_t library_algorithm(const GemmAlgorithm& bits);

// Pointers that are part of the description: a bias, and the scales of FP8 operands.
struct GemmExtras {
  const void* bias = nullptr;
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
};

// All on the stack, so that making one allocates nothing. first is B and second is A, as above.
class GemmDescriptors {
 public:
  explicit GemmDescriptors(const GemmProblem& p, const GemmExtras& extras = {});

  cublasLtMatmulDesc_t operation() { return &operation_; }
  cublasLtMatrixLayout_t first() { return &b_; }
  cublasLtMatrixLayout_t second() { return &a_; }
  cublasLtMatrixLayout_t d() { return &d_; }

 private:
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

}  // namespace quern::kernels::cuda
