#include "kernels/optimizer.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

StepState norm_of(const std::vector<float>& grad, float scale, float max_norm, const float* loss) {
  StepState state;
  const int64_t n = static_cast<int64_t>(grad.size());
  Guarded<double> partial(norm_chunks(n));
  EXPECT_EQ(cpu::norm_partial_bytes({}), sizeof(double));
  cpu::sum_squares(partial.data(), grad.data(), n, {});
  cpu::finish_norm(&state, partial.data(), norm_chunks(n), scale, max_norm, loss, {});
  partial.values();
  return state;
}

TEST(GlobalNorm, ClipsAboveTheMaximum) {
  for (const int64_t n : {0, 1, 31, 1025, 50000}) {
    const auto grad = random_vector<float>(n, 1);
    double squares = 0.0;
    for (const float g : grad) squares += double{g} * g;
    const double norm = 0.5 * std::sqrt(squares);
    const StepState state = norm_of(grad, 0.5f, 0.25f, nullptr);
    EXPECT_NEAR(state.norm, norm, norm * 0x1p-23);  // summed in double, rounded once
    EXPECT_NEAR(state.clip, 0.5 * std::min(1.0, 0.25 / (norm + 1e-6)), 0x1p-22);
    EXPECT_EQ(norm_of(grad, 0.5f, 0.0f, nullptr).clip, 0.5f);
    EXPECT_EQ(state.finite, 1);
  }
}

// Parts that begin at chunks give the partial sums of the whole.
TEST(GlobalNorm, IsSharedByRanks) {
  const int64_t n = 50000, cut = 40 * kNormChunk;
  const auto grad = random_vector<float>(n, 1);
  Guarded<double> whole(norm_chunks(n)), parts(norm_chunks(n));
  cpu::sum_squares(whole.data(), grad.data(), n, {});
  cpu::sum_squares(parts.data() + 40, grad.data() + cut, n - cut, {});
  cpu::sum_squares(parts.data(), grad.data(), cut, {});
  EXPECT_EQ(parts.values(), whole.values());
}

TEST(GlobalNorm, SeesNonFiniteValues) {
  auto grad = random_vector<float>(1025, 1);
  const float loss = NAN;
  EXPECT_EQ(norm_of(grad, 1.0f, 1.0f, &loss).finite, 0);
  grad[777] = INFINITY;
  EXPECT_EQ(norm_of(grad, 1.0f, 1.0f, nullptr).finite, 0);
  grad[777] = NAN;
  EXPECT_EQ(norm_of(grad, 1.0f, 1.0f, nullptr).finite, 0);
}

TEST(AdamW, TwoRangesAgainstTheFormula) {
  const int64_t n = 2000;
  const AdamWRange ranges[] = {{0, 1025, 1.0f, 0.1f}, {1100, 33, 0.5f, 0.0f}};
  const AdamWHyper hyper;
  auto grad = random_vector<float>(n, 1);
  const auto p0 = random_vector<float>(n, 2), m0 = random_vector<float>(n, 3);
  const auto v0 = random_vector<float>(n, 4, 0.0, 1.0);
  Guarded<float> p(p0), m(m0), v(v0);
  Guarded<bfloat16> copy(n);
  const auto copy0 = copy.values();
  StepState state;
  state.lr = 1e-2f, state.clip = 0.5f, state.step = 4;
  cpu::adamw(p.data(), m.data(), v.data(), copy.data(), grad.data(), ranges, 2, n, hyper, &state,
             cpu::Stream{});

  std::vector<double> p1 = doubles(p0), m1 = doubles(m0), v1 = doubles(v0);
  std::vector<bool> updated(n, false);
  for (const AdamWRange& range : ranges) {
    for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
      const double g = grad[i] * 0.5, b1 = hyper.beta1, b2 = hyper.beta2;
      m1[i] = b1 * m1[i] + (1 - b1) * g;
      v1[i] = b2 * v1[i] + (1 - b2) * g * g;
      const double direction =
          m1[i] / (1 - std::pow(b1, 5)) / (std::sqrt(v1[i] / (1 - std::pow(b2, 5))) + hyper.eps);
      p1[i] -= double{state.lr} * range.lr_scale * (range.decay * p1[i] + direction);
      updated[i] = true;
    }
  }
  expect_near(p.values(), p1);
  expect_near(m.values(), m1);
  expect_near(v.values(), v1);
  const auto next = p.values();
  const auto copied = copy.values();
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(copied[i].bits, updated[i] ? bfloat16(next[i]).bits : copy0[i].bits);
    EXPECT_TRUE(updated[i] || next[i] == p0[i]);
  }

  const auto before = p.values();
  state.finite = 0;
  cpu::adamw(p.data(), m.data(), v.data(), copy.data(), grad.data(), ranges, 2, n, hyper, &state,
             cpu::Stream{});
  EXPECT_TRUE(same_bits(p.values(), before));
  cpu::finish_step(&state, cpu::Stream{});
  EXPECT_EQ(state.skipped, 1);
  state.finite = 1;
  cpu::finish_step(&state, cpu::Stream{});
  EXPECT_EQ(state.step, 5);
}

TEST(CountNonfinite, PerRange) {
  auto grad = random_vector<float>(200, 1);
  grad[3] = NAN, grad[120] = INFINITY, grad[121] = -INFINITY;
  const AdamWRange ranges[] = {{0, 100}, {100, 100}, {50, 10}};
  Guarded<int64_t> counts(3);
  cpu::count_nonfinite(counts.data(), grad.data(), ranges, 3, cpu::Stream{});
  EXPECT_EQ(counts.values(), (std::vector<int64_t>{1, 2, 0}));
}

TEST(GlobalNorm, ThreadCount) {
  const auto grad = random_vector<float>(200000, 5);
  expect_thread_count_does_not_matter(
      [&] { return std::vector<float>{norm_of(grad, 1.0f, 1.0f, nullptr).norm}; });
}

}  // namespace
}  // namespace quern::kernels
