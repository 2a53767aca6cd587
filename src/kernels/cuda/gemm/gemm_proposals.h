// Lists the cuBLASLt algorithms that can compute a product.
#pragma once

#include <vector>

#include "kernels/cuda/gemm/gemm_descriptors.h"

namespace quern::kernels::cuda {

// The proposals of the library's heuristic, its favourite first; at most `most`, at least one. Sums
// may be split only where the parts stay in FP32 and are added in a fixed order. `descriptors` are
// those of p.
std::vector<GemmAlgorithm> gemm_proposals(cublasLtHandle_t handle, const GemmProblem& p,
                                          GemmDescriptors& descriptors, int most);

// Every configuration (tile, stages, split, ...) of every algorithm that the library has for FP32
// products without tensor cores, where the heuristic knows few. Empty for other products.
std::vector<GemmAlgorithm> gemm_configurations(cublasLtHandle_t handle, const GemmProblem& p);

}  // namespace quern::kernels::cuda
