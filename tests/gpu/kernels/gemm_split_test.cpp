// FP32 products on BF16 tensor cores against products in double: layouts, tails, shares of K, and
// an error at most SGEMM's. The scratch memory is poisoned with NaN and guarded.
#include "kernels/cuda/gemm/gemm_split.h"

#include <algorithm>
#include <cfloat>
#include <functional>
#include <memory>

#include "autograd/ops/matmul.h"
#include "autograd/tape.h"
#include "gpu/compare.h"
#include "kernels/cuda/gemm/gemm_handle.h"
#include "kernels/gemm.h"
#include "tensor/context.h"
#include "tensor/factory.h"

namespace quern::test {
namespace {

using kernels::Gemm;
using kernels::GemmProblem;
using kernels::cuda::SplitPlan;

GemmProblem problem(int64_t m, int64_t n, int64_t k, int transposes) {
  GemmProblem p;
  p.m = m, p.n = n, p.k = k, p.batch = 1;
  p.transpose_a = transposes & 1, p.transpose_b = transposes >> 1;
  p.lda = p.transpose_a != 0 ? m : k, p.ldb = p.transpose_b != 0 ? k : n, p.ldd = n;
  return p;
}

int64_t span(int64_t rows, int64_t ld, int64_t batch, int64_t stride) {
  return rows * ld + (batch - 1) * stride;
}
int64_t span_a(const GemmProblem& p) {
  return span(p.transpose_a != 0 ? p.k : p.m, p.lda, p.batch, p.stride_a);
}
int64_t span_b(const GemmProblem& p) {
  return span(p.transpose_b != 0 ? p.n : p.k, p.ldb, p.batch, p.stride_b);
}
int64_t span_d(const GemmProblem& p) {
  return span(p.m, p.ldd, p.batch, p.stride_d);
}

// One element of op(A) op(B) in double, and the sum of its terms' sizes.
struct Term {
  double sum = 0.0, size = 0.0;
};
Term element(const GemmProblem& p, const std::vector<float>& a, const std::vector<float>& b,
             int64_t matrix, int64_t row, int64_t column) {
  const int64_t a_row = p.transpose_a != 0 ? 1 : p.lda, a_k = p.transpose_a != 0 ? p.lda : 1;
  const int64_t b_column = p.transpose_b != 0 ? p.ldb : 1, b_k = p.transpose_b != 0 ? 1 : p.ldb;
  const float* x = a.data() + matrix * p.stride_a + row * a_row;
  const float* y = b.data() + matrix * p.stride_b + column * b_column;
  Term term;
  for (int64_t i = 0; i < p.k; ++i) {
    const double product = double{x[i * a_k]} * y[i * b_k];
    term.sum += product;
    term.size += std::abs(product);
  }
  return term;
}

// The terms of the product (batch, m, n).
std::vector<Term> all_terms(const GemmProblem& p, const std::vector<float>& a,
                            const std::vector<float>& b) {
  std::vector<Term> terms;
  for (int64_t line = 0; line < p.batch * p.m; ++line) {
    for (int64_t column = 0; column < p.n; ++column) {
      terms.push_back(element(p, a, b, line / p.m, line % p.m, column));
    }
  }
  return terms;
}

class HopperGemmSplit : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !kernels::cuda::split_runs()) GTEST_SKIP() << "not sm_90a";
  }

  std::vector<float> run(const GemmProblem& p, const SplitPlan& plan, const std::vector<float>& a,
                         const std::vector<float>& b, const std::vector<float>& before,
                         float alpha = 1.0f, float beta = 0.0f, int64_t shift = 0) {
    DeviceBuffer<float> device_a(a, shift), device_b(b, shift), d(span_d(p), shift);
    DeviceBuffer<uint8_t> scratch(kernels::cuda::split_scratch(p, plan));
    const auto result = run_twice(d, [&] {
      scratch.poison();
      d.upload(before);
      kernels::cuda::split_gemm(d.get(), device_a.get(), device_b.get(), p, alpha, beta, plan,
                                scratch.get(), {});
    });
    scratch.expect_guards_intact();
    device_a.expect_guards_intact();
    device_b.expect_guards_intact();
    return result;
  }

  void check(const GemmProblem& p, float alpha = 1.0f, float beta = 0.0f, int64_t shift = 0) {
    const auto a = random_values<float>(span_a(p), 1), b = random_values<float>(span_b(p), 2);
    auto before = random_values<float>(span_d(p), 3);
    if (beta == 0.0f) std::fill(before.begin(), before.end(), NAN);
    const std::vector<Term> terms = all_terms(p, a, b);
    for (int tile = 0; tile < kernels::cuda::kSplitTileCount; ++tile) {
      for (const int parts : {1, 3}) {
        if (parts > (p.k + kernels::cuda::kSplitDepth - 1) / kernels::cuda::kSplitDepth) continue;
        SCOPED_TRACE(::testing::Message()
                     << p.m << " x " << p.n << " x " << p.k << (p.transpose_a != 0 ? ", A^T" : "")
                     << (p.transpose_b != 0 ? ", B^T" : "") << ", batch " << p.batch << ", beta "
                     << beta << ", shift " << shift << ", tile " << tile << ", parts " << parts);
        compare(p, terms, before, alpha, beta,
                run(p, {tile, parts}, a, b, before, alpha, beta, shift));
      }
    }
  }

  // Relative to the sum of the terms' sizes. Each block of K adds one rounding of 2^-24. Within a
  // block the tensor cores truncate 12 sums at about 2^-23, of which the first 10 are of small
  // products, and the terms of a sum at 2^-24 of the largest: 24 units cover both. Then come alpha,
  // beta and their sum. Elements between D's rows keep their bits.
  static void compare(const GemmProblem& p, const std::vector<Term>& terms,
                      const std::vector<float>& before, float alpha, float beta,
                      const std::vector<float>& result) {
    const double blocks = std::ceil(static_cast<double>(p.k) / kernels::cuda::kSplitDepth);
    std::vector<float> others = before;
    for (size_t i = 0; i < terms.size(); ++i) {
      const auto line = static_cast<int64_t>(i) / p.n, column = static_cast<int64_t>(i) % p.n;
      const auto at = static_cast<size_t>(line / p.m * p.stride_d + line % p.m * p.ldd + column);
      const double old = beta == 0.0f ? 0.0 : double{beta} * before[at];
      const double sizes = std::abs(alpha) * terms[i].size;
      ASSERT_NEAR(result[at], double{alpha} * terms[i].sum + old,
                  0x1p-24 * ((blocks + 24.0) * sizes + 2.0 * (sizes + std::abs(old))))
          << "matrix " << line / p.m << ", row " << line % p.m << ", column " << column;
      others[at] = result[at];
    }
    expect_same_bits(result, others);
  }
};

TEST_F(HopperGemmSplit, EveryTransposeAndTail) {
  const int64_t sizes[][3] = {{1, 1, 1},      {31, 33, 70},   {128, 192, 32}, {129, 193, 33},
                              {257, 130, 65}, {300, 400, 20}, {127, 1, 1025}, {1, 200, 256}};
  for (const auto& [m, n, k] : sizes) {
    for (const int transposes : {0, 1, 2, 3}) {
      for (const int64_t shift : {0, 1}) check(problem(m, n, k, transposes), 1.0f, 0.0f, shift);
    }
  }
}

TEST_F(HopperGemmSplit, LeadingDimensionsAndAccumulation) {
  for (const int transposes : {0, 1, 2, 3}) {
    for (const int64_t pad : {3, 8}) {
      GemmProblem p = problem(150, 204, 104, transposes);
      p.lda += pad, p.ldb += pad, p.ldd += pad;
      check(p, 0.125f, 0.0f);
      check(p, 1.0f, 1.0f);
      check(p, 2.0f, -0.5f);
    }
  }
}

TEST_F(HopperGemmSplit, Batches) {
  for (const int transposes : {0, 1, 2, 3}) {
    GemmProblem p = problem(133, 72, 100, transposes);
    p.batch = 5;
    p.stride_a = p.m * p.k + 5, p.stride_b = p.n * p.k, p.stride_d = p.m * p.n + 7;
    check(p);
    p.stride_b = 0;  // one B for all
    check(p, 1.0f, 1.0f);
    p.stride_b = p.n * p.k, p.stride_a = 0;
    check(p);
  }
  // Heads of a (B, T, H, D) tensor: matrices interleaved row by row.
  GemmProblem heads = problem(64, 64, 16, 2);
  heads.batch = 4, heads.lda = heads.ldb = 64;
  heads.stride_a = heads.stride_b = 16, heads.stride_d = 64 * 64;
  check(heads);
}

// More tiles than multiprocessors, so that blocks use their rings for several tiles, and more rows
// of tiles than one group has.
TEST_F(HopperGemmSplit, ManyTiles) {
  check(problem(2200, 1000, 96, 0));
  check(problem(1000, 2500, 100, 3));
}

TEST_F(HopperGemmSplit, RepeatsGiveTheSameBits) {
  const GemmProblem p = problem(1500, 1100, 700, 2);
  const auto a = random_values<float>(span_a(p), 1), b = random_values<float>(span_b(p), 2);
  DeviceBuffer<float> device_a(a), device_b(b), d(span_d(p));
  for (const SplitPlan& plan :
       {SplitPlan{0, 1}, SplitPlan{0, 3}, SplitPlan{1, 1}, SplitPlan{1, 4}}) {
    DeviceBuffer<uint8_t> scratch(kernels::cuda::split_scratch(p, plan));
    std::vector<float> first;
    for (int i = 0; i < 25; ++i) {
      scratch.poison();
      d.poison();
      kernels::cuda::split_gemm(d.get(), device_a.get(), device_b.get(), p, 1.0f, 0.0f, plan,
                                scratch.get(), {});
      if (i == 0) first = d.download();
      expect_same_bits(d.download(), first);
      ASSERT_FALSE(HasFatalFailure()) << "repeat " << i;
    }
  }
}

// BF16 holds no float above 0x1.FEp127: their high parts must not round to infinity.
TEST_F(HopperGemmSplit, LargeFiniteValues) {
  const GemmProblem p = problem(130, 70, 40, 0);
  auto a = random_values<float>(span_a(p), 1, 0.99, 1.0);
  for (float& x : a) x *= FLT_MAX;
  a[3] = FLT_MAX, a[50] = -FLT_MAX;
  const auto b = random_values<float>(span_b(p), 2, -0x1p-8, 0x1p-8);
  const std::vector<float> before(static_cast<size_t>(span_d(p)));
  compare(p, all_terms(p, a, b), before, 1.0f, 0.0f, run(p, {0, 1}, a, b, before));
}

TEST_F(HopperGemmSplit, InfinitiesStayInTheirRow) {
  const GemmProblem p = problem(140, 60, 64, 0);
  auto a = random_values<float>(span_a(p), 1);
  const auto b = random_values<float>(span_b(p), 2);
  a[static_cast<size_t>(5 * p.lda + 9)] = INFINITY;
  const auto d = run(p, {0, 1}, a, b, std::vector<float>(static_cast<size_t>(span_d(p))));
  for (int64_t i = 0; i < p.m * p.n; ++i) {
    EXPECT_EQ(std::isfinite(d[static_cast<size_t>(i)]), i / p.n != 5) << "element " << i;
  }
}

// Error of elements in some rows over the sizes of their terms, in units of 2^-24.
struct Errors {
  double rms = 0.0, max = 0.0;
};

class HopperGemmSplitError : public HopperGemmSplit {
 protected:
  void SetUp() override {
    HopperGemmSplit::SetUp();
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

  static Gemm product() {  // enough tiles that SGEMM has no reason to split K
    Gemm g;
    g.m = 2048, g.n = 2048, g.k = 2048;
    g.transpose_b = true;
    return g;
  }
  std::vector<float> multiply(const Gemm& g, const std::vector<float>& a,
                              const std::vector<float>& b) {
    DeviceBuffer<float> device_a(a), device_b(b), d(g.m * g.n);
    DeviceBuffer<uint8_t> scratch(kernels::cuda::gemm_scratch(g, DType::f32, {}));
    kernels::GemmResources resources = resources_;
    resources.scratch = scratch.get(), resources.scratch_bytes = scratch.size();
    return run_twice(
        d, [&] { kernels::cuda::gemm(d.get(), device_a.get(), device_b.get(), g, resources, {}); });
  }

  static Errors errors(const Gemm& g, const std::vector<float>& a, const std::vector<float>& b,
                       const std::vector<float>& d) {
    const GemmProblem p = problem(g.m, g.n, g.k, 2);
    constexpr int64_t kRows = 8;
    double squares = 0.0;
    Errors e;
    for (int64_t i = 0; i < kRows * g.n; ++i) {
      const int64_t row = i / g.n * (g.m / kRows) + 5, column = i % g.n;
      const Term term = element(p, a, b, 0, row, column);
      const double actual = d[static_cast<size_t>(row * g.n + column)];
      const double error = std::abs(actual - term.sum) / term.size * 0x1p24;
      squares += error * error;
      e.max = std::max(e.max, error);
    }
    e.rms = std::sqrt(squares / static_cast<double>(kRows * g.n));
    return e;
  }

  // `expected`: the rms of an emulation with sums truncated at 25 bits; twice that is allowed.
  void check(const std::function<float(std::mt19937&)>& draw, double expected) {
    Gemm g = product();
    std::mt19937 engine(1);
    std::vector<float> a(static_cast<size_t>(g.m * g.k)), b(static_cast<size_t>(g.n * g.k));
    for (float& x : a) x = draw(engine);
    for (float& x : b) x = draw(engine);
    g.split = false;
    const Errors fma = errors(g, a, b, multiply(g, a, b));
    g.split = true;
    ASSERT_GT(kernels::cuda::gemm_scratch(g, DType::f32, {}), 0) << "not a split product";
    const Errors split = errors(g, a, b, multiply(g, a, b));
    EXPECT_LE(split.rms, fma.rms);
    EXPECT_LE(split.max, fma.max);
    EXPECT_LE(split.rms, 2.0 * expected);
    RecordProperty("split_rms", std::to_string(split.rms));
    RecordProperty("fma_rms", std::to_string(fma.rms));
  }

  std::unique_ptr<DeviceBuffer<uint8_t>> workspace_;
  kernels::GemmResources resources_;
};

TEST_F(HopperGemmSplitError, NormalInputs) {
  std::normal_distribution<float> normal;
  check([&](std::mt19937& engine) { return normal(engine); }, 0.09);
}

// Truncated sums would all be off to the same side, unlike rounded ones.
TEST_F(HopperGemmSplitError, PositiveInputs) {
  std::uniform_real_distribution<float> uniform;
  check([&](std::mt19937& engine) { return uniform(engine); }, 2.0);
}

TEST_F(HopperGemmSplitError, WideExponents) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-20.0f, 20.0f);
  check([&](std::mt19937& engine) { return normal(engine) * std::exp2(exponent(engine)); }, 1.05);
}

TEST_F(HopperGemmSplitError, OnlyLargeFp32ProductsAreSplit) {
  Gemm g = product();
  EXPECT_EQ(kernels::cuda::gemm_scratch(g, DType::f32, {}), 0);  // not requested
  g.split = true;
  EXPECT_GT(kernels::cuda::gemm_scratch(g, DType::f32, {}), 0);
  EXPECT_EQ(kernels::cuda::gemm_scratch(g, DType::bf16, {}), 0);
  float* const none = nullptr;
  EXPECT_THROW(kernels::cuda::gemm(none, none, none, g, resources_, {}), Error);  // no scratch
  g.math = kernels::MatmulMath::tf32;
  EXPECT_EQ(kernels::cuda::gemm_scratch(g, DType::f32, {}), 0);
  g.math = kernels::MatmulMath::fp32, g.m = g.n = g.k = 64;
  EXPECT_EQ(kernels::cuda::gemm_scratch(g, DType::f32, {}), 0);
}

TEST_F(HopperGemmSplitError, TheContextChooses) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  const NoGrad no_grad;
  const Tensor a = normal({1024, 1536}, 0.0, 1.0), b = normal({1536, 1280}, 0.0, 1.0);
  const auto product = [&](bool split) {
    context.options.fp32_products = split ? Fp32Products::split : Fp32Products::fma;
    return matmul(a, b).value().to_vector<float>();
  };
  const auto split = product(true), fma = product(false);
  EXPECT_NE(split, fma);
  expect_same_bits(product(true), split);
  // SGEMM's rounding: k additions at half a unit of sums up to 5 sqrt(k), in a random walk.
  expect_close(split, fma, 0.0, 6.0 * 0x1p-24 * 1536.0);
}

}  // namespace
}  // namespace quern::test
