// Matrix products, single and batched. Row-major throughout.
// CPU: Eigen. CUDA: cuBLASLt, and a kernel of our own for FP32 on Hopper (cuda/gemm_split.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

// How float operands are multiplied: exactly, or rounded to TF32 (10 mantissa bits) for the tensor
// cores. The CPU always multiplies exactly.
enum class MatmulMath : uint8_t { fp32, tf32 };

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;           // A is stored (k, m)
  bool transpose_b = false;           // B is stored (n, k)
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements between rows as stored; 0: packed
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0,
          stride_d = 0;  // elements between matrices; 0 repeats one (not for D)
  double alpha = 1.0, beta = 0.0;
  MatmulMath math = MatmulMath::fp32;
  // Float operands with math fp32: multiplied as sums of three BF16 parts by tensor cores, with
  // FP32's error, where the GPU can and that is faster. The CPU ignores it.
  bool split = false;
};

class GemmAlgorithms;  // the table of cuBLASLt algorithms by shape; kernels/cuda/gemm_algorithms.h

// What the library needs besides the operands; the Context owns it. All null on the CPU.
struct GemmResources {
  void* handle = nullptr;     // cublasLtHandle_t
  void* workspace = nullptr;  // device memory
  int64_t workspace_bytes = 0;
  GemmAlgorithms* algorithms = nullptr;
  void* scratch = nullptr;  // device memory of one call, as gemm_scratch asks; not the Context's
  int64_t scratch_bytes = 0;
};

namespace cpu {
// D = alpha op(A) op(B) + beta D for each of g.batch matrices. op(A) is (m, k), op(B) is (k, n), D
// is (m, n). Inputs T, accumulation in acc_t<T>, output TD. With beta != 0 D is read; into a
// bfloat16 D cuBLASLt may then round the product before it adds (Quern adds into FP32 alone).
// Instances (TD, T): (float, float), (bfloat16, bfloat16), (float, bfloat16), and on the CPU
// (double, double).
template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& g, const GemmResources& resources,
          Stream stream);

// Bytes of GemmResources::scratch, aligned to 256 bytes, that a product of such operands needs.
inline int64_t gemm_scratch(const Gemm&, DType /*input*/, Stream) {
  return 0;
}
}  // namespace cpu

namespace cuda {
template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& g, const GemmResources& resources,
          Stream stream);
int64_t gemm_scratch(const Gemm& g, DType input, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
