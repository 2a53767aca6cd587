// Matrix products, single and batched. Row-major throughout.
// CPU: packed panels (cpu/panels.h) and Eigen. CUDA: cuBLASLt, and Quern's kernel for FP32 on
// Hopper (cuda/gemm/gemm_split.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

// The multiplication of float operands: exact, or with operands rounded to TF32 (10 mantissa bits)
// for the tensor cores. The CPU always multiplies exactly.
enum class MatmulMath : uint8_t { fp32, tf32 };

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;           // A is stored (k, m)
  bool transpose_b = false;           // B is stored (n, k)
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements between rows as stored; 0: packed
  int64_t batch = 1;
  // Uses the library's algorithm for a batch of this size, at least `batch`, so that a part of a
  // batch has the bits of the whole (seen on H200, not promised by cuBLASLt). 0: for `batch`.
  int64_t batch_like = 0;
  // Elements between matrices; 0 repeats one matrix (not for D).
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;
  double alpha = 1.0, beta = 0.0;
  const void* c = nullptr;  // the term of beta, in D's type and layout; null: D itself
  MatmulMath math = MatmulMath::fp32;
  // For float operands with math fp32: Quern's own kernel where there is one, instead of the
  // library's. On a GPU, tensor cores multiply sums of three BF16 parts, with FP32's error, where
  // that is supported and faster.
  bool split = false;
  // (n), in D's type: added to each row of D, if gemm_adds_bias() is true. cuBLASLt may round the
  // product first.
  const void* bias = nullptr;
};

// The table of cuBLASLt algorithms by shape: kernels/gemm_algorithms.h.
class GemmAlgorithms;

// cuBLASLt's resources besides the operands, owned by the Context. All null on the CPU.
struct GemmResources {
  void* handle = nullptr;     // cublasLtHandle_t
  void* workspace = nullptr;  // device memory
  int64_t workspace_bytes = 0;
  GemmAlgorithms* algorithms = nullptr;
  void* scratch = nullptr;  // device memory of one call; not owned by the Context
  int64_t scratch_bytes = 0;
};

namespace cpu {
// D = alpha op(A) op(B) + beta C for each of g.batch matrices. op(A) is (m, k), op(B) is (k, n), C
// and D are (m, n). Inputs T, accumulation in acc_t<T>, output TD. C is read if beta != 0; cuBLASLt
// may then round the product to a bfloat16 D before it adds C. A C apart from D needs k > 0 and no
// split. Instances (TD, T): (float, float), (bfloat16, bfloat16), (float, bfloat16), and on the CPU
// (double, double).
template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& g, const GemmResources& resources,
          Stream stream);

// Bytes of GemmResources::scratch, aligned to 256 bytes, that a product needs.
int64_t gemm_scratch(const Gemm& g, DType input, Stream stream);
inline bool gemm_adds_bias(const Gemm&, DType /*input*/, DType /*output*/, Stream) {
  return false;
}
}  // namespace cpu

namespace cuda {
template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& g, const GemmResources& resources,
          Stream stream);
int64_t gemm_scratch(const Gemm& g, DType input, Stream stream);
bool gemm_adds_bias(const Gemm& g, DType input, DType output, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
