#include "kernels/cuda/gemm/gemm_descriptors.h"

#include <cstring>

#include "base/error.h"
#include "kernels/gemm.h"

namespace quern::kernels::cuda {

namespace {

template <class Value>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t name, Value value,
         const GemmProblem& p) {
  check_cublas(cublasLtMatmulDescSetAttribute(&operation, name, &value, sizeof(value)),
               "descriptor", p);
}

// A row-major (rows, width) matrix is a column-major (width, rows) one.
void init(cublasLtMatrixLayoutOpaque_t& layout, int64_t dtype, int64_t rows, int64_t width,
          int64_t ld, int64_t stride, const GemmProblem& p) {
  check_cublas(cublasLtMatrixLayoutInit(&layout, cuda_type(dtype), static_cast<uint64_t>(width),
                                        static_cast<uint64_t>(rows), ld),
               "layout", p);
  const auto batch = static_cast<int32_t>(p.batch);
  check_cublas(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof(batch)),
               "layout", p);
  check_cublas(cublasLtMatrixLayoutSetAttribute(
                   &layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
               "layout", p);
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* what, const GemmProblem& p) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail(cat("gemm: ", what, " failed for m ", p.m, ", n ", p.n, ", k ", p.k, ", batch ", p.batch,
           ", leading dimensions ", p.lda, ", ", p.ldb, ", ", p.ldd, ": ",
           cublasLtGetStatusString(status)));
}

cudaDataType_t cuda_type(int64_t dtype) {
  if (dtype == static_cast<int64_t>(DType::f32)) return CUDA_R_32F;
  if (dtype == static_cast<int64_t>(DType::bf16)) return CUDA_R_16BF;
  if (dtype == GemmProblem::kFp8) return CUDA_R_8F_E4M3;
  fail(cat("gemm: dtype ", dtype, ", expected f32, bf16 or FP8"));
}

cublasComputeType_t compute_type(const GemmProblem& p) {
  const bool tf32 = p.math == static_cast<int64_t>(MatmulMath::tf32) &&
                    p.input_type == static_cast<int64_t>(DType::f32);
  return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cublasLtMatmulAlgo_t library_algorithm(const GemmAlgorithm& bits) {
  static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, bits.data(), sizeof algorithm);
  return algorithm;
}

GemmDescriptors::GemmDescriptors(const GemmProblem& p, const GemmExtras& extras) {
  check_cublas(cublasLtMatmulDescInit(&operation_, compute_type(p), CUDA_R_32F), "descriptor", p);
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, p);
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, p);
  if ((p.math & GemmProblem::kBiased) != 0) {
    set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, p);
    set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, extras.bias, p);
  }
  if (p.input_type == GemmProblem::kFp8) {  // our B is the library's A
    const auto mode_of = [&](int64_t tiles) {
      return (p.math & tiles) != 0 ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                   : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    };
    set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(GemmProblem::kTilesInB), p);
    set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(GemmProblem::kTilesInA), p);
    set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, extras.b_scales, p);
    set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, extras.a_scales, p);
  }
  const int64_t b_rows = p.transpose_b ? p.n : p.k, b_width = p.transpose_b ? p.k : p.n;
  const int64_t a_rows = p.transpose_a ? p.k : p.m, a_width = p.transpose_a ? p.m : p.k;
  init(b_, p.input_type, b_rows, b_width, p.ldb, p.stride_b, p);
  init(a_, p.input_type, a_rows, a_width, p.lda, p.stride_a, p);
  init(d_, p.output_type, p.m, p.n, p.ldd, p.stride_d, p);
}

}  // namespace quern::kernels::cuda
