// Matrix products by cuBLASLt. The library is column-major; a row-major matrix is its transpose
// there, so D = op(A) op(B) is asked for as D^T = op(B)^T op(A)^T: the operands change places and
// nothing else moves. Descriptors live on the stack, so a call allocates nothing; the first call of
// a shape asks the library's heuristic which algorithm to use, and GemmAlgorithms remembers.
#include "kernels/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gemm_algorithms.h"
#include "kernels/cuda/gemm_scale.h"

namespace quern::kernels::cuda {

namespace {

static_assert(sizeof(GemmAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

void check_cublas(cublasStatus_t status, const char* what, const GemmProblem& p) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  fail(cat("gemm: ", what, " failed for m ", p.m, ", n ", p.n, ", k ", p.k, ", batch ", p.batch,
           ", leading dimensions ", p.lda, ", ", p.ldb, ", ", p.ldd, ": ",
           cublasLtGetStatusString(status)));
}

template <class T>
constexpr cudaDataType_t cuda_type() {
  if constexpr (std::is_same_v<T, float>) {
    return CUDA_R_32F;
  } else {
    static_assert(std::is_same_v<T, bfloat16>);
    return CUDA_R_16BF;
  }
}

int64_t alignment(const void* p) {  // largest power of two up to 256 that divides the address
  const auto address = reinterpret_cast<uintptr_t>(p) | 256;
  return static_cast<int64_t>(address & (~address + 1));
}

GemmProblem describe(const Gemm& g) {
  GemmProblem p;
  p.m = g.m, p.n = g.n, p.k = g.k, p.batch = g.batch;
  p.lda = g.lda != 0 ? g.lda : (g.transpose_a ? g.m : g.k);
  p.ldb = g.ldb != 0 ? g.ldb : (g.transpose_b ? g.k : g.n);
  p.ldd = g.ldd != 0 ? g.ldd : g.n;
  p.stride_a = g.stride_a, p.stride_b = g.stride_b, p.stride_d = g.stride_d;
  p.transpose_a = g.transpose_a, p.transpose_b = g.transpose_b;
  p.math = static_cast<int64_t>(g.math);
  return p;
}

void check_problem(const GemmProblem& p) {
  const int64_t a_width = p.transpose_a ? p.m : p.k, b_width = p.transpose_b ? p.k : p.n;
  QUERN_CHECK(p.lda >= a_width, "gemm: lda is ", p.lda, ", expected at least ", a_width);
  QUERN_CHECK(p.ldb >= b_width, "gemm: ldb is ", p.ldb, ", expected at least ", b_width);
  QUERN_CHECK(p.ldd >= p.n, "gemm: ldd is ", p.ldd, ", expected at least ", p.n);
  QUERN_CHECK(p.batch <= INT32_MAX, "gemm: batch is ", p.batch, ", expected at most 2^31 - 1");
  QUERN_CHECK(p.batch == 1 || p.stride_d != 0, "gemm: stride_d is 0 and batch is ", p.batch,
              ": the products would overwrite each other");
}

// The column-major description of one product; all on the stack.
class Descriptors {
 public:
  Descriptors(const GemmProblem& p, cudaDataType_t input, cudaDataType_t output) {
    const bool tf32 = p.math == static_cast<int64_t>(MatmulMath::tf32) && input == CUDA_R_32F;
    const auto compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_cublas(cublasLtMatmulDescInit(&operation_, compute, CUDA_R_32F), "descriptor", p);
    const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first, p);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second, p);
    const int64_t b_rows = p.transpose_b ? p.n : p.k, b_width = p.transpose_b ? p.k : p.n;
    const int64_t a_rows = p.transpose_a ? p.k : p.m, a_width = p.transpose_a ? p.m : p.k;
    init(b_, input, b_rows, b_width, p.ldb, p.stride_b, p);
    init(a_, input, a_rows, a_width, p.lda, p.stride_a, p);
    init(d_, output, p.m, p.n, p.ldd, p.stride_d, p);
  }

  cublasLtMatmulDesc_t operation() { return &operation_; }
  cublasLtMatrixLayout_t a() { return &a_; }
  cublasLtMatrixLayout_t b() { return &b_; }
  cublasLtMatrixLayout_t d() { return &d_; }

 private:
  void set(cublasLtMatmulDescAttributes_t name, cublasOperation_t value, const GemmProblem& p) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation_, name, &value, sizeof(value)),
                 "descriptor", p);
  }
  // A row-major (rows, width) matrix is a column-major (width, rows) one.
  static void init(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows,
                   int64_t width, int64_t ld, int64_t stride, const GemmProblem& p) {
    check_cublas(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(width),
                                          static_cast<uint64_t>(rows), ld),
                 "layout", p);
    const auto batch = static_cast<int32_t>(p.batch);
    check_cublas(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                  &batch, sizeof(batch)),
                 "layout", p);
    check_cublas(cublasLtMatrixLayoutSetAttribute(
                     &layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
                 "layout", p);
  }

  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

template <class Value>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name,
            Value value, const GemmProblem& p) {
  check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)),
               "preference", p);
}

// What the heuristic proposes that works with the workspace, its favourite first. Split sums are
// allowed only where partial sums stay in FP32 and meet in a fixed order.
std::vector<GemmAlgorithm> propose(cublasLtHandle_t handle, Descriptors& descriptors,
                                   const GemmProblem& p, int most) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "preference", p);
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<uint64_t>(p.workspace_bytes), p);
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), p);
  const auto a_bytes = static_cast<uint32_t>(p.align_a), b_bytes = static_cast<uint32_t>(p.align_b),
             d_bytes = static_cast<uint32_t>(p.align_d);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b_bytes, p);  // swapped, as above
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a_bytes, p);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d_bytes, p);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d_bytes, p);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  check_cublas(cublasLtMatmulAlgoGetHeuristic(handle, descriptors.operation(), descriptors.b(),
                                              descriptors.a(), descriptors.d(), descriptors.d(),
                                              &preference, most, results.data(), &found),
               "choosing an algorithm", p);
  std::vector<GemmAlgorithm> proposals;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (result.workspaceSize > static_cast<size_t>(p.workspace_bytes)) continue;
    std::memcpy(proposals.emplace_back().data(), &result.algo, sizeof(GemmAlgorithm));
  }
  if (proposals.empty()) check_cublas(CUBLAS_STATUS_NOT_SUPPORTED, "choosing an algorithm", p);
  return proposals;
}

// The proposal with the shortest time, the median of several runs, each begun with what `evict`
// leaves in the L2 cache: in a training step a product finds its weights in memory. The library's
// favourite is kept unless another one is clearly faster.
template <class Multiply, class Evict>
GemmAlgorithm fastest(const std::vector<GemmAlgorithm>& proposals, cudaStream_t stream,
                      Multiply multiply, Evict evict) {
  constexpr int kRuns = 9;
  constexpr float kClearly = 0.97f;
  cudaEvent_t start, stop;
  check_cuda(cudaEventCreate(&start), "cudaEventCreate");
  check_cuda(cudaEventCreate(&stop), "cudaEventCreate");
  const auto time = [&](const GemmAlgorithm& proposal) {
    float ms[kRuns];
    for (float& run : ms) {
      evict();
      check_cuda(cudaEventRecord(start, stream), "cudaEventRecord");
      if (!multiply(proposal)) return INFINITY;
      check_cuda(cudaEventRecord(stop, stream), "cudaEventRecord");
      check_cuda(cudaEventSynchronize(stop), "timing a matrix product");
      check_cuda(cudaEventElapsedTime(&run, start, stop), "cudaEventElapsedTime");
    }
    std::nth_element(ms, ms + kRuns / 2, ms + kRuns);
    return ms[kRuns / 2];
  };
  time(proposals.front());  // warms up
  GemmAlgorithm best = proposals.front();
  float to_beat = kClearly * time(best);
  for (size_t i = 1; i < proposals.size(); ++i) {
    const float ms = time(proposals[i]);
    if (ms >= to_beat) continue;
    to_beat = ms;
    best = proposals[i];
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return best;
}

}  // namespace

template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& g, const GemmResources& resources,
          Stream stream) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  GemmProblem p = describe(g);
  check_problem(p);
  const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  if (g.k == 0) {
    scale_matrices(d, g.m, g.n, p.ldd, g.batch, g.stride_d, beta, stream);
    return;
  }
  p.input_type = static_cast<int64_t>(dtype_of<T>);
  p.output_type = static_cast<int64_t>(dtype_of<TD>);
  p.align_a = alignment(a), p.align_b = alignment(b), p.align_d = alignment(d);
  p.workspace_bytes = resources.workspace_bytes;

  const auto handle = static_cast<cublasLtHandle_t>(resources.handle);
  QUERN_CHECK(handle != nullptr && resources.algorithms != nullptr,
              "gemm: the resources hold no handle or no algorithm table");
  Descriptors descriptors(p, cuda_type<T>(), cuda_type<TD>());
  const auto multiply = [&](const GemmAlgorithm& algorithm) {
    cublasLtMatmulAlgo_t chosen;
    std::memcpy(&chosen, algorithm.data(), sizeof(chosen));
    return cublasLtMatmul(handle, descriptors.operation(), &alpha, b, descriptors.b(), a,
                          descriptors.a(), &beta, d, descriptors.d(), d, descriptors.d(), &chosen,
                          resources.workspace, static_cast<size_t>(resources.workspace_bytes),
                          static_cast<cudaStream_t>(stream.handle));
  };
  GemmAlgorithms& algorithms = *resources.algorithms;
  const GemmAlgorithm* algorithm = algorithms.find(p);
  if (algorithm == nullptr) {
    constexpr int kFew = 8, kMany = 64;
    const std::vector<GemmAlgorithm> proposals =
        propose(handle, descriptors, p, algorithms.measuring ? kMany : kFew);
    const auto try_out = [&](const GemmAlgorithm& proposal) {
      return multiply(proposal) == CUBLAS_STATUS_SUCCESS;
    };
    const auto evict = [&] {
      check_cuda(
          cudaMemsetAsync(resources.workspace, 0, static_cast<size_t>(resources.workspace_bytes),
                          static_cast<cudaStream_t>(stream.handle)),
          "clearing the workspace");
    };
    algorithms.insert(
        p, algorithms.measuring
               ? fastest(proposals, static_cast<cudaStream_t>(stream.handle), try_out, evict)
               : proposals.front());
    algorithm = algorithms.find(p);
  }
  check_cublas(multiply(*algorithm), "cublasLtMatmul", p);
}

template void gemm<float, float>(float*, const float*, const float*, const Gemm&,
                                 const GemmResources&, Stream);
template void gemm<bfloat16, bfloat16>(bfloat16*, const bfloat16*, const bfloat16*, const Gemm&,
                                       const GemmResources&, Stream);
template void gemm<float, bfloat16>(float*, const bfloat16*, const bfloat16*, const Gemm&,
                                    const GemmResources&, Stream);

}  // namespace quern::kernels::cuda
