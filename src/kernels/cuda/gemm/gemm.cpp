// Matrix products by cuBLASLt, large FP32 ones on Hopper by gemm_split. A call allocates nothing.
// The first call of a shape asks the library's heuristic for an algorithm, or measures algorithms
// (`quern tune`); GemmAlgorithms keeps the choice.
#include "kernels/gemm.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/slow_path.h"
#include "kernels/cuda/gemm/gemm_proposals.h"
#include "kernels/cuda/gemm/gemm_split.h"
#include "kernels/cuda/gemm/gemm_split_passes.h"
#include "kernels/cuda/gemm/gemm_tuning.h"
#include "kernels/cuda/primitives/cuda_check.h"
#include "kernels/scaled_gemm.h"

namespace quern::kernels::cuda {

namespace {

int64_t alignment(const void* p) {  // largest power of two up to 256 that divides the address
  const auto address = reinterpret_cast<uintptr_t>(p) | 256;
  return static_cast<int64_t>(address & (~address + 1));
}

void check_problem(const GemmProblem& p, int64_t batch_like) {
  const int64_t a_width = p.transpose_a ? p.m : p.k, b_width = p.transpose_b ? p.k : p.n;
  QUERN_CHECK(p.lda >= a_width, "gemm: lda is ", p.lda, ", expected at least ", a_width);
  QUERN_CHECK(p.ldb >= b_width, "gemm: ldb is ", p.ldb, ", expected at least ", b_width);
  QUERN_CHECK(p.ldd >= p.n, "gemm: ldd is ", p.ldd, ", expected at least ", p.n);
  QUERN_CHECK(p.batch <= INT32_MAX, "gemm: batch is ", p.batch, ", expected at most 2^31 - 1");
  QUERN_CHECK(batch_like >= p.batch, "gemm: batch_like is ", batch_like, ", expected ", p.batch,
              " or more");
  QUERN_CHECK(p.batch == 1 || p.stride_d != 0, "gemm: stride_d is 0 and batch is ", p.batch,
              ": the products would overwrite each other");
}

// Notes rows whose length or pitch is no multiple of 16 bytes: the library then has only slower
// kernels. Small products are not noted.
template <class TD, class T>
void note_misaligned_rows(const GemmProblem& p) {
  constexpr int64_t kSmall = 1 << 27, kInput = 16 / sizeof(T), kOutput = 16 / sizeof(TD);
  if (p.m * p.n * p.k * p.batch < kSmall || std::min(p.m, p.n) == 1) return;
  int64_t width = 0;
  for (const int64_t each : {p.ldd, p.n}) width = each % kOutput != 0 ? each : width;
  for (const int64_t each : {p.ldb, p.lda, p.transpose_b ? p.k : p.n, p.transpose_a ? p.m : p.k}) {
    width = each % kInput != 0 ? each : width;
  }
  if (width == 0) return;
  note_slow_path(cat("matrix products in ", dtype_of<T>),
                 cat("rows of ", width, " elements are no multiple of 16 bytes, as multiples of ",
                     kInput, " are"));
}

// Writes the workspace, which is most of the L2 cache.
void sweep_cache(const GemmResources& resources, Stream stream) {
  check_cuda(cudaMemsetAsync(resources.workspace, 0, static_cast<size_t>(resources.workspace_bytes),
                             static_cast<cudaStream_t>(stream.handle)),
             "clearing the workspace");
}

// Times the library's algorithms for a product on its own operands, and keeps the result.
GemmAlgorithm measure(const GemmProblem& p, GemmDescriptors& descriptors,
                      const GemmResources& resources, const GemmTrial& trial, Stream stream) {
  constexpr int kMany = 64;
  const auto handle = static_cast<cublasLtHandle_t>(resources.handle);
  std::vector<GemmAlgorithm> candidates = gemm_proposals(handle, p, descriptors, kMany);
  const std::vector<GemmAlgorithm> others = gemm_configurations(handle, p);
  candidates.insert(candidates.end(), others.begin(), others.end());
  GemmAlgorithms& algorithms = *resources.algorithms;
  GemmMeasurement found = find_fastest(candidates, algorithms.before(p), trial, stream);
  found.problem = p;
  algorithms.measurements.push_back(found);
  return found.chosen;
}

// D = alpha op(A) op(B) + beta C by the library, with p's algorithm from the table, which is added
// at first use: that of a batch of `batch_like`.
void multiply_by_library(void* d, const void* a, const void* b, const void* c, float alpha,
                         float beta, const GemmProblem& p, int64_t batch_like,
                         const GemmExtras& extras, const GemmResources& resources, Stream stream) {
  const auto handle = static_cast<cublasLtHandle_t>(resources.handle);
  QUERN_CHECK(handle != nullptr && resources.algorithms != nullptr,
              "gemm: the resources hold no handle or no algorithm table");
  GemmDescriptors descriptors(p, extras);
  const auto multiply = [&](const GemmAlgorithm& algorithm) {
    const cublasLtMatmulAlgo_t chosen = library_algorithm(algorithm);
    return cublasLtMatmul(
        handle, descriptors.operation(), &alpha, b, descriptors.first(), a, descriptors.second(),
        &beta, c, descriptors.d(), d, descriptors.d(), &chosen, resources.workspace,
        static_cast<size_t>(resources.workspace_bytes), static_cast<cudaStream_t>(stream.handle));
  };
  GemmAlgorithms& algorithms = *resources.algorithms;
  GemmProblem like = p;
  like.batch = batch_like;
  const GemmAlgorithm* algorithm = algorithms.find(like);
  if (algorithm == nullptr) {
    constexpr int kFew = 8;
    const GemmTrial trial{
        [&](const GemmAlgorithm& proposal) { return multiply(proposal) == CUBLAS_STATUS_SUCCESS; },
        [&] { sweep_cache(resources, stream); }};
    GemmDescriptors described(like, extras);
    algorithms.insert(like, algorithms.measuring()
                                ? measure(like, described, resources, trial, stream)
                                : gemm_proposals(handle, like, described, kFew).front());
    algorithm = algorithms.find(like);
  }
  check_cublas(multiply(*algorithm), "cublasLtMatmul", p);
}

}  // namespace

bool gemm_adds_bias(const Gemm& g, DType input, DType output, Stream) {
  return input == DType::bf16 && output == DType::bf16 && g.k > 0 && g.batch == 1 &&
         g.beta == 0.0 && g.n % 8 == 0 && alignment(g.bias) >= 16;
}

template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& g, const GemmResources& resources,
          Stream stream) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  GemmProblem p = describe(g);
  const int64_t batch_like = g.batch_like > 0 ? g.batch_like : g.batch;
  check_problem(p, batch_like);
  QUERN_CHECK(!g.bias || gemm_adds_bias(g, dtype_of<T>, dtype_of<TD>, stream), "gemm: a bias for ",
              dtype_of<TD>, " from ", dtype_of<T>, ", k ", g.k, ", batch ", g.batch,
              ", expected bf16, one product, beta 0, 16-byte alignment and n ", g.n,
              " a multiple of 8");
  const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  const TD* const c = g.c != nullptr ? static_cast<const TD*>(g.c) : d;
  QUERN_CHECK(c == d || (g.k > 0 && !g.split), "gemm: c is not d, expected k above 0 and no split");
  if (g.k == 0) {
    scale_matrices(d, g.m, g.n, p.ldd, g.batch, g.stride_d, beta, stream);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (const std::optional<SplitPlan> plan = plan_of_split(g, p, dtype_of<T>, stream)) {
      const int64_t needed = split_scratch(p, *plan);
      QUERN_CHECK(resources.scratch_bytes >= needed, "gemm: the scratch memory has ",
                  resources.scratch_bytes, " bytes, expected at least ", needed);
      return split_gemm(d, a, b, p, alpha, beta, *plan, resources.scratch, stream);
    }
  }
  p.input_type = static_cast<int64_t>(dtype_of<T>);
  p.output_type = static_cast<int64_t>(dtype_of<TD>);
  p.align_a = alignment(a), p.align_b = alignment(b),
  p.align_d = std::min(alignment(c), alignment(d));
  p.workspace_bytes = resources.workspace_bytes;
  note_misaligned_rows<TD, T>(p);
  multiply_by_library(d, a, b, c, alpha, beta, p, batch_like, {.bias = g.bias}, resources, stream);
}

template <class TD>
void scaled_gemm(TD* d, const Fp8Matrix& a, const Fp8Matrix& b, const ScaledGemm& scaled,
                 const GemmResources& resources, Stream stream) {
  check_scaled(scaled, a, b);
  if (scaled.m == 0 || scaled.n == 0) return;
  Gemm g;
  g.m = scaled.m, g.n = scaled.n, g.k = scaled.k;
  g.transpose_b = true;
  if (g.k == 0) {
    return scale_matrices(d, g.m, g.n, g.n, 1, 0, static_cast<float>(scaled.beta), stream);
  }
  GemmProblem p = describe(g);
  p.input_type = GemmProblem::kFp8;
  p.output_type = static_cast<int64_t>(dtype_of<TD>);
  if (a.blocks == ScaleBlocks::tiles) p.math |= GemmProblem::kTilesInA;
  if (b.blocks == ScaleBlocks::tiles) p.math |= GemmProblem::kTilesInB;
  p.align_a = alignment(a.values), p.align_b = alignment(b.values), p.align_d = alignment(d);
  p.workspace_bytes = resources.workspace_bytes;
  multiply_by_library(d, a.values, b.values, d, 1.0f, static_cast<float>(scaled.beta), p, p.batch,
                      {.a_scales = a.scales, .b_scales = b.scales}, resources, stream);
}

template decltype(gemm<float, float>) gemm<float, float>;
template decltype(gemm<bfloat16, bfloat16>) gemm<bfloat16, bfloat16>;
template decltype(gemm<float, bfloat16>) gemm<float, bfloat16>;
template decltype(scaled_gemm<float>) scaled_gemm<float>;
template decltype(scaled_gemm<bfloat16>) scaled_gemm<bfloat16>;

}  // namespace quern::kernels::cuda
