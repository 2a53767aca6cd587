#include "kernels/cpu/level.h"

#include "base/error.h"
#include "support/cpu_gemm.h"
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

}  // namespace
}  // namespace quern::kernels
