#include "kernels/cuda/gemm/gemm_proposals.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm.h"

namespace quern::kernels::cuda {

namespace {

GemmAlgorithm bits_of(const cublasLtMatmulAlgo_t& algorithm) {
  GemmAlgorithm bits;
  std::memcpy(bits.data(), &algorithm, sizeof algorithm);
  return bits;
}

template <class Value>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t name,
            Value value, const GemmProblem& p) {
  check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)),
               "preference", p);
}

// A capability of an algorithm, as a number; 0 where the library gives none.
template <class T>
T capability(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoCapAttributes_t name) {
  T value{};
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoCapGetAttribute(&algorithm, name, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : T{};
}

// The tiles or stages that an algorithm can use; {0}, "undefined", when it has no choice.
std::vector<uint32_t> choices(const cublasLtMatmulAlgo_t& algorithm,
                              cublasLtMatmulAlgoCapAttributes_t name) {
  size_t bytes = 0;
  cublasStatus_t status = cublasLtMatmulAlgoCapGetAttribute(&algorithm, name, nullptr, 0, &bytes);
  if (status != CUBLAS_STATUS_SUCCESS || bytes < sizeof(uint32_t)) return {0};
  std::vector<uint32_t> values(bytes / sizeof(uint32_t));
  status = cublasLtMatmulAlgoCapGetAttribute(&algorithm, name, values.data(),
                                             values.size() * sizeof(uint32_t), &bytes);
  return status == CUBLAS_STATUS_SUCCESS ? values : std::vector<uint32_t>{0};
}

bool serves(const cublasLtMatmulAlgo_t& algorithm, const GemmProblem& p) {
  const auto number = [&](cublasLtMatmulAlgoCapAttributes_t name) {
    return int64_t{capability<uint32_t>(algorithm, name)};
  };
  const auto numerics = capability<uint64_t>(algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS);
  if ((numerics & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK) != 0) return false;
  if (p.batch > 1 && number(CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT) == 0) return false;
  return number(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES) <= p.align_b &&  // swapped
         number(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES) <= p.align_a &&
         number(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES) <= p.align_d &&
         number(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES) <= p.align_d;
}

// Adds the variants of one algorithm that the library accepts for the product.
class Variants {
 public:
  Variants(cublasLtHandle_t handle, const GemmProblem& p, std::vector<GemmAlgorithm>& found)
      : handle_(handle), p_(p), descriptors_(p), found_(found) {}

  void add(cublasLtMatmulAlgo_t algorithm) {
    const auto splits = capability<int32_t>(algorithm, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT);
    const auto schemes = capability<uint32_t>(algorithm, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK);
    const bool can_split = splits != 0 && (schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
    const auto options = capability<int32_t>(algorithm, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX);
    const auto swizzles = capability<uint32_t>(algorithm, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT);
    for (const uint32_t tile : choices(algorithm, CUBLASLT_ALGO_CAP_TILE_IDS)) {
      set(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, tile);
      for (const uint32_t stages : choices(algorithm, CUBLASLT_ALGO_CAP_STAGES_IDS)) {
        set(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages);
        for (int32_t option = 0; option <= options; ++option) {
          set(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<uint32_t>(option));
          for (uint32_t swizzle = 0; swizzle <= std::min(swizzles, 1u); ++swizzle) {
            set(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle);
            add_splits(algorithm, can_split);
          }
        }
      }
    }
  }

 private:
  void add_splits(cublasLtMatmulAlgo_t algorithm, bool can_split) {
    for (const int32_t parts : {1, 2, 3, 4, 6, 8}) {
      if (parts > 1 && !can_split) return;
      const uint32_t scheme =
          parts > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
      set(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts);
      set(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme);
      cublasLtMatmulHeuristicResult_t result;
      const cublasStatus_t status = cublasLtMatmulAlgoCheck(
          handle_, descriptors_.operation(), descriptors_.first(), descriptors_.second(),
          descriptors_.d(), descriptors_.d(), &algorithm, &result);
      if (status != CUBLAS_STATUS_SUCCESS || result.state != CUBLAS_STATUS_SUCCESS) continue;
      if (result.workspaceSize > static_cast<size_t>(p_.workspace_bytes)) continue;
      found_.push_back(bits_of(algorithm));
    }
  }

  // An attribute that an algorithm does not have stays as it was; add_splits asks the library.
  template <class Value>
  static void set(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
                  Value value) {
    cublasLtMatmulAlgoConfigSetAttribute(&algorithm, name, &value, sizeof value);
  }

  cublasLtHandle_t handle_;
  const GemmProblem& p_;
  GemmDescriptors descriptors_;
  std::vector<GemmAlgorithm>& found_;
};

}  // namespace

std::vector<GemmAlgorithm> gemm_proposals(cublasLtHandle_t handle, const GemmProblem& p,
                                          GemmDescriptors& descriptors, int most) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "preference", p);
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<uint64_t>(p.workspace_bytes), p);
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), p);
  const auto a_bytes = static_cast<uint32_t>(p.align_a), b_bytes = static_cast<uint32_t>(p.align_b),
             d_bytes = static_cast<uint32_t>(p.align_d);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b_bytes, p);  // swapped
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a_bytes, p);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d_bytes, p);
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d_bytes, p);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  check_cublas(cublasLtMatmulAlgoGetHeuristic(
                   handle, descriptors.operation(), descriptors.first(), descriptors.second(),
                   descriptors.d(), descriptors.d(), &preference, most, results.data(), &found),
               "choosing an algorithm", p);
  results.resize(static_cast<size_t>(found));
  std::vector<GemmAlgorithm> proposals;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    if (result.workspaceSize > static_cast<size_t>(p.workspace_bytes)) continue;
    proposals.push_back(bits_of(result.algo));
  }
  if (proposals.empty()) check_cublas(CUBLAS_STATUS_NOT_SUPPORTED, "choosing an algorithm", p);
  return proposals;
}

std::vector<GemmAlgorithm> gemm_configurations(cublasLtHandle_t handle, const GemmProblem& p) {
  constexpr int kMostAlgorithms = 256;
  const cudaDataType_t input = cuda_type(p.input_type), output = cuda_type(p.output_type);
  const cublasComputeType_t compute = compute_type(p);
  std::vector<GemmAlgorithm> found;
  if (input != CUDA_R_32F || compute != CUBLAS_COMPUTE_32F) return found;
  int ids[kMostAlgorithms];
  int count = 0;
  check_cublas(cublasLtMatmulAlgoGetIds(handle, compute, CUDA_R_32F, input, input, output, output,
                                        kMostAlgorithms, ids, &count),
               "listing algorithms", p);
  Variants variants(handle, p, found);
  for (const int id : std::vector<int>(ids, ids + count)) {
    cublasLtMatmulAlgo_t algorithm;
    const cublasStatus_t status = cublasLtMatmulAlgoInit(handle, compute, CUDA_R_32F, input, input,
                                                         output, output, id, &algorithm);
    if (status == CUBLAS_STATUS_SUCCESS && serves(algorithm, p)) variants.add(algorithm);
  }
  return found;
}

}  // namespace quern::kernels::cuda
