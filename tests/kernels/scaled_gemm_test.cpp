#include "kernels/scaled_gemm.h"

#include "kernels/quantize.h"
#include "support/fp8_matrices.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
using testing_support::Fp8Buffer;
using testing_support::random_matrix;

Fp8Buffer random_fp8(int64_t rows, int64_t depth, ScaleBlocks blocks, uint32_t seed) {
  Fp8Buffer made(rows, depth, blocks);
  cpu::quantize(made.output(), {}, random_matrix(rows, depth, seed).data(), rows, depth, depth, {});
  return made;
}

template <class TD>
std::vector<TD> multiply(const std::vector<TD>& d, const Fp8Buffer& a, const Fp8Buffer& b,
                         double beta) {
  const ScaledGemm g{a.layout.rows, b.layout.rows, a.layout.depth, beta};
  Guarded<TD> out(d);
  Guarded<std::byte> work(cpu::scaled_gemm_scratch(g, dtype_of<TD>, {}));
  GemmResources resources;
  resources.scratch = work.data();
  cpu::scaled_gemm(out.data(), a.matrix(), b.matrix(), g, resources, {});
  return out.values();
}

template <class TD>
void check(int64_t m, int64_t n, int64_t k, ScaleBlocks of_a, ScaleBlocks of_b, double beta) {
  SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", beta " << beta);
  const Fp8Buffer a = random_fp8(m, k, of_a, 1), b = random_fp8(n, k, of_b, 2);
  const auto before = random_vector<TD>(a.layout.rows * b.layout.rows, 3);
  std::vector<double> expected;
  for (int64_t i = 0; i < a.layout.rows; ++i) {
    for (int64_t j = 0; j < b.layout.rows; ++j) {
      double sum = beta == 0.0 ? 0.0 : beta * to_double(before[i * b.layout.rows + j]);
      for (int64_t l = 0; l < k; ++l) sum += a(i, l) * b(j, l);
      expected.push_back(sum);
    }
  }
  expect_near(multiply(before, a, b, beta), expected);
}

TEST(ScaledGemm, MatchesDouble) {
  const auto rows = ScaleBlocks::rows, tiles = ScaleBlocks::tiles;
  for (const auto& [of_a, of_b] : {std::pair(rows, tiles), {tiles, rows}, {rows, rows}}) {
    for (const double beta : {0.0, 1.0}) {
      check<float>(1, 1, 1, of_a, of_b, beta);
      check<float>(150, 40, 300, of_a, of_b, beta);
      check<bfloat16>(33, 140, 200, of_a, of_b, beta);
      check<bfloat16>(16, 16, 128, of_a, of_b, beta);
    }
  }
}

}  // namespace
}  // namespace quern::kernels
