#include "kernels/cpu/level.h"

#include <cmath>

#include "base/error.h"
#include "support/cpu_gemm.h"
#include "support/cpu_levels.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(CpuLevel, TheBestIsInUseAtFirst) {
  EXPECT_EQ(cpu::level(), cpu::levels().back());
}

TEST(CpuLevel, AnUnknownLevelIsRefusedAndChangesNothing) {
  const std::string before = cpu::level();
  try {
    cpu::use_level("mmx");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("level mmx"), std::string::npos) << error.what();
  }
  EXPECT_EQ(cpu::level(), before);
}

// Also after another level was in use, and where a panel of columns is full at one level and not at
// another. Eigen's products (without split) differ in their last bits.
TEST(CpuLevel, AProductHasTheSameBitsAtEachLevel) {
  const auto expect_same = [](const Gemm& g) {
    const auto a = random_vector<float>(g.m * g.k, 1), b = random_vector<float>(g.k * g.n, 2);
    const auto product = [&] {
      Guarded<float> d(random_vector<float>(g.m * g.n, 3));
      testing_support::cpu_gemm(d.data(), a.data(), b.data(), g);
      return d.values();
    };
    const std::vector<float> best = product();
    testing_support::at_each_cpu_level([&] {
      const std::vector<float> first = product();
      EXPECT_EQ(first, product());
      if (g.split) {
        EXPECT_EQ(first, best);
      } else {
        expect_near(first, doubles(best), 2 * tolerance<float>());
      }
    });
    EXPECT_EQ(product(), best);
  };
  for (const bool split : {true, false}) {
    for (const int64_t n : {130, 50}) {
      for (const bool turned : {false, true}) {
        for (const double beta : {0.0, 0.5}) {
          Gemm g{.m = 65, .n = n, .k = 700, .alpha = 1.5, .beta = beta, .split = split};
          g.transpose_a = turned, g.transpose_b = !turned;
          expect_same(g);
        }
      }
    }
  }
}

// Integers so small that every sum is exact, whatever its order.
std::vector<bfloat16> integers(int64_t count, int64_t seed) {
  std::vector<bfloat16> values;
  for (int64_t i = 0; i < count; ++i) {
    values.emplace_back(static_cast<float>((i * 7919 + seed + i / 97) % 7 - 3));
  }
  return values;
}

// The lines of the operands begin anywhere, also in the middle of a pair.
template <class TD>
void expect_same_at_each_level(Gemm g) {
  SCOPED_TRACE(cat(g.m, " x ", g.n, " x ", g.k, ", transposed ", g.transpose_a, g.transpose_b,
                   ", batch ", g.batch, ", beta ", g.beta));
  g.lda = (g.transpose_a ? g.m : g.k) + 3, g.ldb = (g.transpose_b ? g.k : g.n) + 1;
  g.stride_a = (g.transpose_a ? g.k : g.m) * g.lda, g.stride_d = g.m * g.n;  // one B for all
  const auto a = integers(g.batch * g.stride_a, 1);
  const auto b = integers((g.transpose_b ? g.n : g.k) * g.ldb, 2);
  const auto c = random_vector<TD>(g.batch * g.stride_d, 3);
  std::vector<TD> expected;
  testing_support::at_each_cpu_level([&] {
    Guarded<TD> d(c);
    testing_support::cpu_gemm(d.data(), a.data(), b.data(), g);
    if (expected.empty()) expected = d.values();
    EXPECT_TRUE(same_bits(d.values(), expected));
  });
}

// Where panels and tiles are full, where they end early, and with odd k.
TEST(CpuLevel, AnExactProductOfBFloat16HasTheSameBitsAtEachLevel) {
  for (const int64_t m : {5, 31, 33, 96, 130}) {
    for (const int64_t n : {5, 17, 64, 577}) {
      for (const int64_t k : {0, 1, 2, 31, 33, 64, 1025}) {
        for (const int turned : {0, 1, 2, 3}) {
          const Gemm g{
              .m = m, .n = n, .k = k, .transpose_a = turned % 2 > 0, .transpose_b = turned > 1};
          expect_same_at_each_level<float>(g);
          expect_same_at_each_level<bfloat16>(g);
        }
      }
    }
  }
  for (const double beta : {0.0, 0.5}) {
    expect_same_at_each_level<float>({.m = 200, .n = 70, .k = 33, .batch = 3, .beta = beta});
    expect_same_at_each_level<bfloat16>({.m = 200, .n = 70, .k = 33, .batch = 3, .beta = beta});
  }
  expect_same_at_each_level<float>({.m = 5, .n = 70, .k = 140'001});  // B is packed in parts
}

// The order of each sum is that of gemm_panels.h's instructions.
TEST(CpuLevel, ProductsOfBFloat16AddInTheOrderOfTheirInstructions) {
  const Gemm g{.m = 37, .n = 70, .k = 95};
  const auto a = random_vector<bfloat16>(g.m * g.k, 1), b = random_vector<bfloat16>(g.k * g.n, 2);
  const auto product = [&](int64_t i, int64_t j, int64_t l, float sum) {
    return l < g.k ? std::fma(static_cast<float>(a[i * g.k + l]),
                              static_cast<float>(b[l * g.n + j]), sum)
                   : sum;
  };
  const auto in_turn = [&](int64_t i, int64_t j) {
    float sum = 0.0f;
    for (int64_t l = 0; l < g.k; ++l) sum = product(i, j, l, sum);
    return sum;
  };
  const auto in_pairs = [&](int64_t i, int64_t j) {
    float sum = 0.0f;
    for (int64_t l = 0; l < g.k; l += 2) sum = product(i, j, l, product(i, j, l + 1, sum));
    return sum;
  };
  const auto in_tiles = [&](int64_t i, int64_t j) {
    float sum = 0.0f;
    for (int64_t begin = 0; begin < g.k; begin += 32) {
      float even = 0.0f, odd = 0.0f;
      for (int64_t l = begin; l < begin + 32; l += 2) {
        even = product(i, j, l, even);
        odd = product(i, j, l + 1, odd);
      }
      sum += even + odd;
    }
    return sum;
  };
  testing_support::at_each_cpu_level([&] {
    Guarded<float> d(g.m * g.n);
    testing_support::cpu_gemm(d.data(), a.data(), b.data(), g);
    const std::string level = cpu::level();
    if (level == "native" || level == "portable") return;
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        const float expected = level == "amx"           ? in_tiles(i, j)
                               : level == "avx512_bf16" ? in_pairs(i, j)
                                                        : in_turn(i, j);
        ASSERT_EQ(d.values()[i * g.n + j], expected) << i << ", " << j;
      }
    }
  });
}

}  // namespace
}  // namespace quern::kernels
