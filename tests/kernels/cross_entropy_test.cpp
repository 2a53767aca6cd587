#include "kernels/cross_entropy.h"

#include "base/error.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
constexpr int32_t kIgnore = -100;

TEST(CrossEntropy, ForwardMeanBackward) {
  for_float_types([](auto t) {
    using T = decltype(t);
    using A = acc_t<T>;
    for (const int64_t V : {int64_t{1}, int64_t{31}, int64_t{33}, int64_t{1025}}) {
      const int64_t N = 7;
      const auto x = random_vector<T>(N * V, 1, -6.0, 6.0);
      std::vector<int32_t> targets;
      for (int64_t i = 0; i < N; ++i) targets.push_back(static_cast<int32_t>(i * 37 % V));
      targets[2] = kIgnore;
      Guarded<A> row_loss(N), lse(N), loss(1), inverse(1);
      Guarded<T> dx(N * V);
      cpu::cross_entropy_forward(row_loss.data(), lse.data(), x.data(), targets.data(), N, V,
                                 kIgnore, cpu::Stream{});
      cpu::cross_entropy_mean(loss.data(), inverse.data(), row_loss.data(), targets.data(), N,
                              kIgnore, cpu::Stream{});
      const A dloss = A(0.5);
      cpu::cross_entropy_backward(dx.data(), x.data(), lse.data(), targets.data(), inverse.data(),
                                  &dloss, N, V, kIgnore, cpu::Stream{});

      std::vector<double> rows(N), logsumexp(N), gradient(N * V, 0.0);
      double mean = 0.0;
      for (int64_t i = 0; i < N; ++i) {
        double sum = 0.0;
        for (int64_t v = 0; v < V; ++v) sum += std::exp(to_double(x[i * V + v]));
        logsumexp[i] = std::log(sum);
        if (targets[i] == kIgnore) continue;
        rows[i] = logsumexp[i] - to_double(x[i * V + targets[i]]);
        mean += rows[i] / 6;
        for (int64_t v = 0; v < V; ++v) {
          const double p = std::exp(to_double(x[i * V + v]) - logsumexp[i]);
          gradient[i * V + v] = (p - (v == targets[i])) / 6 * 0.5;
        }
      }
      if (V == 1) continue;  // every loss and gradient is 0 up to rounding; nothing to compare
      expect_near(lse.values(), logsumexp, 2 * tolerance<A>());
      expect_near(row_loss.values(), rows, 2 * tolerance<A>());
      expect_near(loss.values(), {mean}, 2 * tolerance<A>());
      expect_near(inverse.values(), {1.0 / 6});
      expect_near(dx.values(), gradient, 2 * tolerance<T>());

      Guarded<T> in_place(x);
      cpu::cross_entropy_backward(in_place.data(), in_place.data(), lse.data(), targets.data(),
                                  inverse.data(), &dloss, N, V, kIgnore, cpu::Stream{});
      EXPECT_TRUE(same_bits(in_place.values(), dx.values()));

      // In one pass, with the loss scale in place of dloss.
      Guarded<T> logits(x);
      Guarded<A> one_pass_loss(N), scale(1);
      cpu::cross_entropy_scale(scale.data(), targets.data(), N, 0.5, kIgnore, cpu::Stream{});
      expect_near(scale.values(), {0.5 / 6});
      cpu::cross_entropy_forward_backward(one_pass_loss.data(), logits.data(), targets.data(),
                                          scale.data(), N, V, kIgnore, {}, cpu::Stream{});
      EXPECT_TRUE(same_bits(one_pass_loss.values(), row_loss.values()));
      expect_near(logits.values(), gradient, 2 * tolerance<T>());

      // Adds 0.125 lse^2 to each row's loss: 0.25 lse softmax more in the gradient.
      Guarded<T> with_z(x);
      Guarded<A> row_z(N);
      cpu::cross_entropy_forward_backward(one_pass_loss.data(), with_z.data(), targets.data(),
                                          scale.data(), N, V, kIgnore, {row_z.data(), A(0.125)},
                                          cpu::Stream{});
      std::vector<double> z(N, 0.0);
      for (int64_t i = 0; i < N; ++i) {
        if (targets[i] == kIgnore) continue;
        z[i] = logsumexp[i] * logsumexp[i];
        for (int64_t v = 0; v < V; ++v) {
          const double p = std::exp(to_double(x[i * V + v]) - logsumexp[i]);
          gradient[i * V + v] += 0.25 * logsumexp[i] * p / 6 * 0.5;
        }
      }
      EXPECT_TRUE(same_bits(one_pass_loss.values(), row_loss.values()));
      expect_near(row_z.values(), z, 4 * tolerance<A>());
      expect_near(with_z.values(), gradient, 2 * tolerance<T>());
    }
  });
}

TEST(CrossEntropy, AllIgnored) {
  const float row_loss[] = {0, 0};
  const int32_t targets[] = {kIgnore, kIgnore};
  float loss = 9, inverse = 9;
  cpu::cross_entropy_mean(&loss, &inverse, row_loss, targets, 2, kIgnore, cpu::Stream{});
  EXPECT_EQ(loss, 0.0f);
  EXPECT_EQ(inverse, 0.0f);
  float scale = 9, ignored_loss[2] = {9, 9}, logits[4] = {1, 2, 3, 4};
  cpu::cross_entropy_scale(&scale, targets, 2, 0.5, kIgnore, cpu::Stream{});
  EXPECT_EQ(scale, 0.0f);
  cpu::cross_entropy_forward_backward(ignored_loss, logits, targets, &scale, 2, 2, kIgnore, {},
                                      cpu::Stream{});
  for (const float loss : ignored_loss) EXPECT_EQ(loss, 0.0f);
  for (const float gradient : logits) EXPECT_EQ(gradient, 0.0f);
}

TEST(CrossEntropy, TargetPastTheVocabularyThrows) {
  const float logits[6] = {};
  const int32_t targets[] = {0, 3};
  float row_loss[2], lse[2];
  try {
    cpu::cross_entropy_forward(row_loss, lse, logits, targets, 2, 3, kIgnore, cpu::Stream{});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "cross_entropy: target 1 is 3, expected 0 to 2 or ignore_index (-100)");
  }
}

}  // namespace
}  // namespace quern::kernels
