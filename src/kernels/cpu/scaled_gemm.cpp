// FP8 products: the operands as floats, then an FP32 product.
#include "kernels/scaled_gemm.h"

#include <algorithm>
#include <type_traits>

#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

namespace {

constexpr int64_t kAligned = 64;  // floats: 256 bytes

// to (rows, depth) = values times scales.
void widen(float* to, const Fp8Matrix& x, int64_t rows, int64_t depth) {
  const ScaleLayout layout{x.blocks, rows, depth};
  parallel_rows(rows, depth, [&](int64_t r) {
    for (int64_t k = 0; k < depth; k += kScaleBlock) {
      const float scale = x.scales[layout.at(r, k)];
      const int64_t end = std::min(k + kScaleBlock, depth);
      for (int64_t i = r * depth + k; i < r * depth + end; ++i) {
        to[i] = static_cast<float>(x.values[i]) * scale;
      }
    }
  });
}

// Floats of the parts of the scratch memory before that of the FP32 product.
struct Parts {
  int64_t a, b, d;

  Parts(const ScaledGemm& g, bool narrow)
      : a(round_up(g.m * g.k, kAligned)),
        b(round_up(g.n * g.k, kAligned)),
        d(narrow ? round_up(g.m * g.n, kAligned) : 0) {}
  int64_t size() const { return a + b + d; }
};

Gemm in_floats(const ScaledGemm& scaled) {
  Gemm g;
  g.m = scaled.m, g.n = scaled.n, g.k = scaled.k;
  g.transpose_b = true;
  g.split = true;
  return g;
}

}  // namespace

int64_t scaled_gemm_scratch(const ScaledGemm& g, DType output, Stream stream) {
  const int64_t floats = Parts(g, output != DType::f32).size();
  return floats * static_cast<int64_t>(sizeof(float)) +
         gemm_scratch(in_floats(g), DType::f32, stream);
}

template <class TD>
void scaled_gemm(TD* d, const Fp8Matrix& a, const Fp8Matrix& b, const ScaledGemm& scaled,
                 const GemmResources& resources, Stream stream) {
  check_scaled(scaled, a, b);
  constexpr bool kNarrow = !std::is_same_v<TD, float>;
  const Parts parts(scaled, kNarrow);
  float* const wide_a = static_cast<float*>(resources.scratch);
  float* const wide_b = wide_a + parts.a;
  float* const wide_d = wide_b + parts.b;
  widen(wide_a, a, scaled.m, scaled.k);
  widen(wide_b, b, scaled.n, scaled.k);
  Gemm g = in_floats(scaled);
  GemmResources rest = resources;
  rest.scratch = wide_d + parts.d;
  if constexpr (kNarrow) {
    gemm(wide_d, wide_a, wide_b, g, rest, stream);
    const auto beta = static_cast<float>(scaled.beta);
    parallel_elements(g.m * g.n, [=](int64_t i) {
      const float before = beta == 0.0f ? 0.0f : beta * static_cast<float>(d[i]);
      d[i] = static_cast<TD>(wide_d[i] + before);
    });
  } else {
    g.beta = scaled.beta;
    gemm(d, wide_a, wide_b, g, rest, stream);
  }
}

template decltype(scaled_gemm<float>) scaled_gemm<float>;
template decltype(scaled_gemm<bfloat16>) scaled_gemm<bfloat16>;

}  // namespace quern::kernels::cpu
