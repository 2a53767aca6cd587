// cuBLASLt products against the CPU's: every transpose, any size, leading dimensions, batches,
// accumulation, unaligned operands. The whole of D's memory is compared, so a write between the
// rows shows too.
#include "kernels/gemm.h"

#include <memory>
#include <sstream>

#include "gpu/compare.h"
#include "kernels/cuda/gemm/gemm_handle.h"
#include "kernels/gemm_algorithms.h"
#include "support/cpu_gemm.h"

namespace quern::test {
namespace {

using kernels::Gemm;
using kernels::MatmulMath;

class GemmGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    workspace_ = std::make_unique<DeviceBuffer<uint8_t>>(int64_t{32} << 20);
    resources_.handle = kernels::cuda::create_gemm_handle();
    resources_.workspace = workspace_->get();
    resources_.workspace_bytes = workspace_->size();
    resources_.algorithms = kernels::cuda::create_gemm_algorithms();
  }
  void TearDown() override {
    kernels::cuda::destroy_gemm_algorithms(resources_.algorithms);
    kernels::cuda::destroy_gemm_handle(resources_.handle);
  }

  template <class TD, class T>
  std::vector<TD> run(const Gemm& g, const std::vector<T>& a, const std::vector<T>& b,
                      const std::vector<TD>& before, int64_t shift) {
    DeviceBuffer<T> device_a(a, shift), device_b(b, shift);
    DeviceBuffer<TD> d(static_cast<int64_t>(before.size()), shift);
    return run_twice(d, [&] {
      d.upload(before);
      kernels::cuda::gemm(d.get(), device_a.get(), device_b.get(), g, resources_, {});
    });
  }

  template <class TD, class T>
  void check(const Gemm& g, int64_t shift = 0);

  std::unique_ptr<DeviceBuffer<uint8_t>> workspace_;
  kernels::GemmResources resources_;
};

struct Extent {
  int64_t a, b, d;  // elements of memory that the operands span
};
Extent extent_of(const Gemm& g) {
  const int64_t a_rows = g.transpose_a ? g.k : g.m, a_cols = g.transpose_a ? g.m : g.k;
  const int64_t b_rows = g.transpose_b ? g.n : g.k, b_cols = g.transpose_b ? g.k : g.n;
  const auto span = [&](int64_t rows, int64_t cols, int64_t ld, int64_t stride) {
    return rows * (ld != 0 ? ld : cols) + std::max<int64_t>(0, g.batch - 1) * stride;
  };
  return {span(a_rows, a_cols, g.lda, g.stride_a), span(b_rows, b_cols, g.ldb, g.stride_b),
          span(g.m, g.n, g.ldd, g.stride_d)};
}

template <class TD, class T>
void GemmGpu::check(const Gemm& g, int64_t shift) {
  SCOPED_TRACE(::testing::Message()
               << g.m << " x " << g.n << " x " << g.k << (g.transpose_a ? ", A^T" : "")
               << (g.transpose_b ? ", B^T" : "") << ", batch " << g.batch << ", beta " << g.beta
               << ", " << dtype_of<T> << " to " << dtype_of<TD> << ", shift " << shift);
  const Extent size = extent_of(g);
  const auto a = random_values<T>(size.a, 1, -1.0, 1.0);
  const auto b = random_values<T>(size.b, 2, -1.0, 1.0);
  std::vector<TD> before = random_values<TD>(size.d, 3);
  if (g.beta == 0.0) std::fill(before.begin(), before.end(), static_cast<TD>(NAN));
  std::vector<TD> expected = before;
  testing_support::cpu_gemm(expected.data(), a.data(), b.data(), g);
  // k products of size below 1 in another order, each addition rounding a sum of some units; the
  // tensor cores (bf16) truncate partial sums that FP32 would round. Rounding to TF32 instead of
  // exact products would show at 2^-12 times the square root of k. A bf16 result may round to the
  // neighbour.
  const double terms = static_cast<double>(std::max<int64_t>(g.k, 8));
  double absolute = terms * (sizeof(T) == 2 ? 0x1p-21 : 0x1p-23);
  // For a bfloat16 D with beta the library may round the product separately: half a unit of a sum
  // of k products, which stays below 4 standard deviations of sqrt(k) / 3.
  if (sizeof(TD) == 2 && g.beta != 0.0) absolute += 0x1p-9 * 4.0 * std::sqrt(terms) / 3.0;
  const double relative = sizeof(TD) == 2 ? 2 * rounding<TD>() : 2 * 0x1p-24;
  expect_close(run<TD, T>(g, a, b, before, shift), expected, relative, absolute);
}

TEST_F(GemmGpu, EveryTransposeAndSize) {
  const int64_t sizes[][3] = {{1, 1, 1},     {31, 33, 1025}, {33, 1, 31},    {1, 1025, 33},
                              {1025, 31, 1}, {128, 256, 64}, {257, 129, 65}, {512, 384, 384}};
  for (const auto& [m, n, k] : sizes) {
    for (const int transposes : {0, 1, 2, 3}) {
      Gemm g;
      g.m = m, g.n = n, g.k = k;
      g.transpose_a = (transposes & 1) != 0, g.transpose_b = (transposes & 2) != 0;
      for (const int64_t shift : {0, 1}) {
        check<float, float>(g, shift);
        check<bfloat16, bfloat16>(g, shift);
        check<float, bfloat16>(g, shift);
      }
    }
  }
}

TEST_F(GemmGpu, LeadingDimensionsAndAccumulation) {
  for (const int transposes : {0, 1, 2, 3}) {
    for (const int64_t pad : {3, 8}) {
      Gemm g;
      g.m = 48, g.n = 40, g.k = 56;
      g.transpose_a = (transposes & 1) != 0, g.transpose_b = (transposes & 2) != 0;
      g.lda = (g.transpose_a ? g.m : g.k) + pad;
      g.ldb = (g.transpose_b ? g.k : g.n) + pad;
      g.ldd = g.n + pad;
      for (const double beta : {0.0, 1.0, -0.5}) {
        g.alpha = beta == 0.0 ? 0.125 : 1.0, g.beta = beta;
        check<float, float>(g);
        check<bfloat16, bfloat16>(g);
        check<float, bfloat16>(g);
      }
    }
  }
}

TEST_F(GemmGpu, Batches) {
  for (const int transposes : {0, 1, 2, 3}) {
    Gemm g;
    g.m = 33, g.n = 24, g.k = 17, g.batch = 6;
    g.transpose_a = (transposes & 1) != 0, g.transpose_b = (transposes & 2) != 0;
    g.stride_a = g.m * g.k + 5, g.stride_b = g.n * g.k, g.stride_d = g.m * g.n + 7;
    check<float, float>(g);
    check<bfloat16, bfloat16>(g);
    g.stride_b = 0;  // one B for all
    g.beta = 1.0;
    check<float, float>(g);
    check<bfloat16, bfloat16>(g);
  }
  // Heads of a (B, T, H, D) tensor: matrices interleaved row by row.
  Gemm heads;
  heads.m = 64, heads.n = 64, heads.k = 16, heads.batch = 4, heads.transpose_b = true;
  heads.lda = heads.ldb = 64, heads.stride_a = heads.stride_b = 16, heads.stride_d = 64 * 64;
  check<float, float>(heads);
  check<bfloat16, bfloat16>(heads);
}

// With C apart from D: the same product, and D's old content is not read.
TEST_F(GemmGpu, AddsMatricesThatLieElsewhere) {
  for (const int64_t size : {33, 64, 256}) {
    Gemm g;
    g.m = g.n = g.k = size, g.batch = 3;
    g.stride_a = g.stride_b = g.stride_d = (size * size + 127) / 128 * 128;
    g.alpha = 2.0, g.beta = -0.5;
    const auto a = random_values<bfloat16>(g.batch * g.stride_a, 1);
    const auto b = random_values<bfloat16>(g.batch * g.stride_b, 2);
    const auto c = random_values<bfloat16>(g.batch * g.stride_d, 3);
    const std::vector<bfloat16> expected = run(g, a, b, c, 0);
    DeviceBuffer<bfloat16> device_c(c);
    g.c = device_c.get();
    std::vector<bfloat16> before = c;
    for (int64_t i = 0; i < g.batch; ++i) {
      std::fill_n(before.begin() + i * g.stride_d, size * size, bfloat16(NAN));
    }
    expect_same_bits(run(g, a, b, before, 0), expected);
    expect_same_bits(device_c.download(), c);
  }
}

// The bias is added in the product's epilogue. cuBLASLt may round the product to bf16 first, as its
// separate pass does: seen on an H200 for 33 x 24 x 17.
TEST_F(GemmGpu, Bias) {
  const int64_t sizes[][3] = {
      {1, 8, 1}, {33, 24, 17}, {128, 256, 64}, {257, 136, 65}, {512, 2304, 768}};
  for (const auto& [m, n, k] : sizes) {
    Gemm g;
    g.m = m, g.n = n, g.k = k, g.transpose_b = true;
    SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k);
    const auto a = random_values<bfloat16>(m * k, 1, -1.0, 1.0);
    const auto b = random_values<bfloat16>(n * k, 2, -1.0, 1.0);
    const auto bias = random_values<bfloat16>(n, 3, -4.0, 4.0);
    std::vector<float> expected(static_cast<size_t>(m * n));
    testing_support::cpu_gemm(expected.data(), a.data(), b.data(), g);
    DeviceBuffer<bfloat16> device_a(a), device_b(b), device_bias(bias), d(m * n);
    g.bias = device_bias.get();
    ASSERT_TRUE(kernels::cuda::gemm_adds_bias(g, DType::bf16, DType::bf16, {}));
    const auto found = run_twice(d, [&] {
      kernels::cuda::gemm(d.get(), device_a.get(), device_b.get(), g, resources_, {});
    });
    // A sum of k products, truncated by the tensor cores; its rounding, and one of the result.
    for (size_t i = 0; i < expected.size(); ++i) {
      const double product = expected[i];
      const double sum = product + double{static_cast<float>(bias[i % static_cast<size_t>(n)])};
      ASSERT_LE(std::abs(double{static_cast<float>(found[i])} - sum),
                rounding<bfloat16>() * (std::abs(product) + std::abs(sum)) +
                    static_cast<double>(k + 8) * 0x1p-21)
          << "element " << i;
    }
    device_bias.expect_guards_intact();
  }
  Gemm g;
  g.m = 4, g.n = 8, g.k = 6, g.bias = &g;
  EXPECT_FALSE(kernels::cuda::gemm_adds_bias(g, DType::f32, DType::f32, {}));
  float* const none = nullptr;
  EXPECT_THROW(kernels::cuda::gemm(none, none, none, g, resources_, {}), Error);
}

TEST_F(GemmGpu, EmptyProducts) {
  Gemm g;
  g.m = 7, g.n = 9, g.k = 0, g.ldd = 11;
  for (const double beta : {0.0, 1.0, 0.5}) {
    g.beta = beta;
    check<float, float>(g);
    check<bfloat16, bfloat16>(g);
  }
  g.batch = 3, g.stride_d = 80;
  check<float, bfloat16>(g);
  for (int64_t Gemm::*size : {&Gemm::m, &Gemm::n, &Gemm::batch}) {
    Gemm empty;
    empty.m = 4, empty.n = 5, empty.k = 6;
    empty.*size = 0;
    empty.stride_d = 20;
    check<float, float>(empty);
  }
}

TEST_F(GemmGpu, Tf32RoundsTheOperandsOnly) {
  Gemm g;
  g.m = 256, g.n = 256, g.k = 512;
  const auto a = random_values<float>(g.m * g.k, 1, -1.0, 1.0);
  const auto b = random_values<float>(g.k * g.n, 2, -1.0, 1.0);
  std::vector<float> exact(static_cast<size_t>(g.m * g.n));
  testing_support::cpu_gemm(exact.data(), a.data(), b.data(), g);
  const auto error = [&](MatmulMath math) {
    g.math = math;
    const auto d = run<float, float>(g, a, b, exact, 0);
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < d.size(); ++i) {
      difference += (double{d[i]} - exact[i]) * (double{d[i]} - exact[i]);
      norm += double{exact[i]} * exact[i];
    }
    return std::sqrt(difference / norm);
  };
  EXPECT_LT(error(MatmulMath::fp32), 1e-6);  // FP32 in another order: a few units of 6e-8
  EXPECT_LT(error(MatmulMath::tf32), 1e-3);  // two operands rounded at 2^-11, averaged: near 3e-4
}

TEST_F(GemmGpu, SavedAlgorithmsAreUsedAgain) {
  Gemm g;
  g.m = 96, g.n = 200, g.k = 320;
  const auto a = random_values<bfloat16>(g.m * g.k, 1);
  const auto b = random_values<bfloat16>(g.k * g.n, 2);
  const std::vector<float> before(static_cast<size_t>(g.m * g.n));
  const auto first = run<float, bfloat16>(g, a, b, before, 0);
  ASSERT_EQ(resources_.algorithms->size(), 1u);
  std::stringstream text;
  resources_.algorithms->save(text);
  kernels::cuda::destroy_gemm_algorithms(resources_.algorithms);
  resources_.algorithms = kernels::cuda::create_gemm_algorithms();
  EXPECT_TRUE(resources_.algorithms->load(text));
  EXPECT_EQ(resources_.algorithms->size(), 1u);
  expect_same_bits(run<float, bfloat16>(g, a, b, before, 0), first);
  EXPECT_EQ(resources_.algorithms->size(), 1u) << "the saved entry was not found";
}

TEST_F(GemmGpu, RejectsWhatCannotBe) {
  float* const none = nullptr;
  Gemm g;
  g.m = 4, g.n = 5, g.k = 6, g.lda = 5;
  EXPECT_THROW(kernels::cuda::gemm(none, none, none, g, resources_, {}), Error);
  g.lda = 0, g.batch = 2;
  EXPECT_THROW(kernels::cuda::gemm(none, none, none, g, resources_, {}), Error);
}

}  // namespace
}  // namespace quern::test
