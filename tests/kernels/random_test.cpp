#include "kernels/random.h"

#include "base/philox.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(Random, ElementDependsOnSeedAndPositionAlone) {
  Guarded<float> whole(1000), part(300);
  cpu::normal(whole.data(), 1000, 0.0, 1.0, 0.0, {7, 100}, cpu::Stream{});
  cpu::normal(part.data(), 300, 0.0, 1.0, 0.0, {7, 350}, cpu::Stream{});
  const auto all = whole.values();
  EXPECT_TRUE(same_bits(part.values(), std::vector<float>(all.begin() + 250, all.begin() + 550)));
  Guarded<float> other(1000);
  cpu::normal(other.data(), 1000, 0.0, 1.0, 0.0, {8, 100}, cpu::Stream{});
  EXPECT_FALSE(same_bits(other.values(), all));
}

TEST(Random, Bfloat16IsTheRoundedFloat) {
  Guarded<float> f(1025), n(1025);
  Guarded<bfloat16> fb(1025), nb(1025);
  cpu::uniform(f.data(), 1025, -1.0, 3.0, {1, 0}, cpu::Stream{});
  cpu::uniform(fb.data(), 1025, -1.0, 3.0, {1, 0}, cpu::Stream{});
  cpu::normal(n.data(), 1025, 0.0, 0.02, 2.0, {1, 0}, cpu::Stream{});
  cpu::normal(nb.data(), 1025, 0.0, 0.02, 2.0, {1, 0}, cpu::Stream{});
  for (size_t i = 0; i < 1025; ++i) {
    EXPECT_EQ(fb.values()[i].bits, bfloat16(f.values()[i]).bits);
    EXPECT_EQ(nb.values()[i].bits, bfloat16(n.values()[i]).bits);
  }
}

// Mean and variance within five standard errors of n draws.
void expect_moments(const std::vector<double>& x, double mean, double variance, double kurtosis) {
  const double n = static_cast<double>(x.size());
  double m = 0.0, v = 0.0;
  for (const double value : x) m += value / n;
  for (const double value : x) v += (value - m) * (value - m) / n;
  EXPECT_NEAR(m, mean, 5 * std::sqrt(variance / n));
  EXPECT_NEAR(v, variance, 5 * variance * std::sqrt((kurtosis - 1) / n));
}

TEST(Random, Distributions) {
  const int64_t n = 200000;
  Guarded<float> u(n), z(n), t(n);
  cpu::uniform(u.data(), n, 2.0, 5.0, {11, 0}, cpu::Stream{});
  cpu::normal(z.data(), n, 1.0, 0.5, 0.0, {12, 0}, cpu::Stream{});
  cpu::normal(t.data(), n, 0.0, 1.0, 2.0, {13, 0}, cpu::Stream{});
  const auto uniform = u.values(), truncated = t.values();
  EXPECT_GE(*std::min_element(uniform.begin(), uniform.end()), 2.0f);
  EXPECT_LT(*std::max_element(uniform.begin(), uniform.end()), 5.0f);
  EXPECT_LE(*std::max_element(truncated.begin(), truncated.end()), 2.0f);
  EXPECT_GE(*std::min_element(truncated.begin(), truncated.end()), -2.0f);
  expect_moments(doubles(uniform), 3.5, 9.0 / 12, 1.8);
  expect_moments(doubles(z.values()), 1.0, 0.25, 3.0);
  // 1 - 2 (2 phi(2)) / (Phi(2) - Phi(-2)), phi the density.
  expect_moments(doubles(truncated), 0.0, 0.773741, 2.4);
}

TEST(Random, UniformNeverReachesHigh) {
  Guarded<float> x(200000);
  cpu::uniform(x.data(), 200000, 0.0, 1e-38, {3, 0}, cpu::Stream{});
  for (const float value : x.values()) ASSERT_LT(value, 1e-38f);
}

TEST(Random, IntegersStayBelowTheBound) {
  Guarded<int32_t> x(1025);
  cpu::random_integers(x.data(), 1025, 3, {1, 0}, cpu::Stream{});
  const auto values = x.values();
  EXPECT_EQ(*std::min_element(values.begin(), values.end()), 0);
  EXPECT_EQ(*std::max_element(values.begin(), values.end()), 2);
  EXPECT_EQ(values[5], static_cast<int32_t>(philox_integer(1, 5, 3)));
}

}  // namespace
}  // namespace quern::kernels
