// Products of FP8 matrices (fp8.h). CPU: of the matrices as floats. CUDA: cuBLASLt, on compute
// capability 9.0.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "base/stream.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"

namespace quern::kernels {

// Extents as stored (fp8_extent).
struct ScaledGemm {
  int64_t m = 0, n = 0, k = 0;
  double beta = 0.0;
};

// Throws unless the extents are stored ones and not both operands have tiles.
inline void check_scaled(const ScaledGemm& g, const Fp8Matrix& a, const Fp8Matrix& b) {
  QUERN_CHECK((g.m | g.n | g.k) % kFp8Padding == 0, "scaled_gemm: m ", g.m, ", n ", g.n, ", k ",
              g.k, ", expected multiples of ", kFp8Padding);
  QUERN_CHECK(a.blocks != ScaleBlocks::tiles || b.blocks != ScaleBlocks::tiles,
              "scaled_gemm: both operands have tiles, expected rows in one");
}

namespace cpu {
// D = A B^T + beta D: A (m, k), B (n, k), D (m, n) packed, TD float or bfloat16. Sums in FP32,
// but those of a block on a GPU have an error of about 2^-13. A, B or neither has tiles, not both.
template <class TD>
void scaled_gemm(TD* d, const Fp8Matrix& a, const Fp8Matrix& b, const ScaledGemm& g,
                 const GemmResources& resources, Stream stream);
// Bytes of GemmResources::scratch, aligned to 256 bytes, that a product needs.
int64_t scaled_gemm_scratch(const ScaledGemm& g, DType output, Stream stream);
}  // namespace cpu

namespace cuda {
template <class TD>
void scaled_gemm(TD* d, const Fp8Matrix& a, const Fp8Matrix& b, const ScaledGemm& g,
                 const GemmResources& resources, Stream stream);
inline int64_t scaled_gemm_scratch(const ScaledGemm&, DType /*output*/, Stream) {
  return 0;
}
}  // namespace cuda

}  // namespace quern::kernels
