#include "kernels/optimizer.h"

#include <bit>

#include "kernels/common/stochastic_rounding.h"
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
  StepState state;
  state.lr = 1e-2f, state.clip = 0.5f, state.step = 4;
  cpu::adamw({p.data()}, m.data(), v.data(), grad.data(), ranges, 2, n, hyper, &state,
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
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_TRUE(updated[i] || next[i] == p0[i]);
  }

  const auto before = p.values();
  state.finite = 0;
  cpu::adamw({p.data()}, m.data(), v.data(), grad.data(), ranges, 2, n, hyper, &state,
             cpu::Stream{});
  EXPECT_TRUE(same_bits(p.values(), before));
  cpu::finish_step(&state, cpu::Stream{});
  EXPECT_EQ(state.skipped, 1);
  state.finite = 1;
  cpu::finish_step(&state, cpu::Stream{});
  EXPECT_EQ(state.step, 5);
}

// The two BF16 numbers around x.
std::pair<float, float> neighbours(float x) {
  const auto toward_zero = std::bit_cast<uint32_t>(x) & 0xFFFF0000u;
  return {std::bit_cast<float>(toward_zero), std::bit_cast<float>(toward_zero + 0x10000u)};
}

TEST(StochasticRounding, TakesANeighbourSoThatTheMeanStays) {
  for (const float x : {1.0f + 0x1p-10f, -3.01f, 1e-30f, 6.9e-39f, -0x1.fffffep+90f}) {
    const auto [inner, outer] = neighbours(x);
    constexpr uint32_t kDraws = 1 << 16;
    uint32_t outward = 0;
    for (uint32_t random = 0; random < kDraws; ++random) {
      const float y = round_at_random(x, random | 0xABCD0000u);  // only the low half counts
      ASSERT_TRUE(y == inner || y == outer) << x << ' ' << y;
      if (y == outer) ++outward;
    }
    EXPECT_EQ(outward, std::bit_cast<uint32_t>(x) & 0xFFFFu) << x;
  }
}

TEST(StochasticRounding, KeepsWhatBf16HasAndWhatIsNotFinite) {
  for (const float x : {0.0f, -0.0f, 1.0f, -0x1.fep+127f, 0x1p-133f, INFINITY, -INFINITY}) {
    for (const uint32_t random : {0u, 1u, 0xFFFFu}) {
      EXPECT_EQ(std::bit_cast<uint32_t>(round_at_random(x, random)), std::bit_cast<uint32_t>(x));
    }
  }
  for (const uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
    EXPECT_TRUE(std::isnan(round_at_random(std::bit_cast<float>(bits), 0xFFFFu)));
  }
  EXPECT_EQ(round_at_random(0x1.fffffep+127f, 0xFFFFu), INFINITY);  // beyond BF16's largest
}

// Every update, element and moment has other numbers, all of them uniform.
TEST(StochasticRounding, DrawsAreUniformAndDiffer) {
  constexpr int64_t kDraws = 1 << 16;
  const std::vector<float> halfway(kDraws, 1.0f + 0x1p-8f);
  const auto draw = [&](uint64_t seed, int64_t t, int64_t place) {
    Guarded<bfloat16> m(kDraws), v(kDraws);
    cpu::round_moments(m.data(), v.data(), halfway.data(), halfway.data(), kDraws, place, seed, t,
                       {});
    return std::pair(doubles(m.values()), doubles(v.values()));
  };
  const auto up = [](const std::vector<double>& x) {
    return std::ranges::count_if(x, [](double value) { return value > 1.0; });
  };
  const auto same = [](const std::vector<double>& a, const std::vector<double>& b) {
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 1 : 0;
    return count;
  };
  const auto [m, v] = draw(1, 1, 0);
  const double half = kDraws / 2.0, five_sigma = 5.0 * std::sqrt(kDraws) / 2.0;
  EXPECT_NEAR(static_cast<double>(up(m)), half, five_sigma);
  EXPECT_NEAR(static_cast<double>(up(v)), half, five_sigma);
  EXPECT_NEAR(static_cast<double>(same(m, v)), half, five_sigma);
  for (const auto& [seed, t, place] :
       {std::tuple{2, 1, 0}, std::tuple{1, 2, 0}, std::tuple{1, 1, 4}, std::tuple{1, 1, 1}}) {
    const auto [other_m, other_v] = draw(static_cast<uint64_t>(seed), t, place);
    EXPECT_NEAR(static_cast<double>(same(m, other_m)), half, five_sigma) << seed << t << place;
    EXPECT_NEAR(static_cast<double>(same(v, other_v)), half, five_sigma) << seed << t << place;
  }
}

// The parameters are those of an update with FP32 moments, and the moments are its own, rounded.
TEST(AdamW, Bf16MomentsAreTheFp32OnesRounded) {
  const int64_t n = 2000;
  const AdamWHyper hyper{.seed = 77};
  const auto grad = random_vector<float>(n, 1), p0 = random_vector<float>(n, 2);
  const auto m0 = random_vector<bfloat16>(n, 3), v0 = random_vector<bfloat16>(n, 4, 0.0, 1.0);
  StepState state;
  state.lr = 1e-2f, state.clip = 0.5f, state.step = 4;
  const AdamWRange ranges[] = {{0, 1025, 1.0f, 0.1f}, {1100, 33, 0.5f, 0.0f}};
  const auto widened = [](const std::vector<bfloat16>& x) {
    return std::vector<float>(x.begin(), x.end());
  };
  Guarded<float> p32(p0), m32(widened(m0)), v32(widened(v0)), p(p0);
  Guarded<bfloat16> m(m0), v(v0);
  cpu::adamw({p32.data()}, m32.data(), v32.data(), grad.data(), ranges, 2, n, hyper, &state,
             cpu::Stream{});
  cpu::adamw({p.data()}, m.data(), v.data(), grad.data(), ranges, 2, n, hyper, &state,
             cpu::Stream{});
  EXPECT_TRUE(same_bits(p.values(), p32.values()));
  Guarded<bfloat16> rounded_m(n), rounded_v(n);
  cpu::round_moments(rounded_m.data(), rounded_v.data(), m32.data(), v32.data(), n, 0, hyper.seed,
                     state.step + 1, cpu::Stream{});
  EXPECT_TRUE(same_bits(m.values(), rounded_m.values()));  // what no range covers is exact
  EXPECT_TRUE(same_bits(v.values(), rounded_v.values()));

  // A rank's share of them, at another place.
  const int64_t first = 512, count = 513;
  const AdamWRange share{.begin = 0, .count = count, .decay = 0.1f, .arena_shift = first};
  const auto part = [&](auto& all) {
    const auto begin = all.begin() + first;
    return std::vector(begin, begin + count);
  };
  Guarded<float> part_p(part(p0));
  Guarded<bfloat16> part_m(part(m0)), part_v(part(v0));
  cpu::adamw({part_p.data()}, part_m.data(), part_v.data(), grad.data() + first, &share, 1, count,
             hyper, &state, cpu::Stream{});
  const auto all_m = m.values(), all_v = v.values();
  EXPECT_TRUE(same_bits(part_m.values(), part(all_m)));
  EXPECT_TRUE(same_bits(part_v.values(), part(all_v)));
}

// Weights in two parts take the bits of an update in FP32.
TEST(AdamW, SplitWeightsAreTheExactOnes) {
  const int64_t n = 2000;
  const AdamWRange ranges[] = {{0, 1025, 1.0f, 0.1f}, {1100, 33, 0.5f, 0.0f}};
  const auto grad = random_vector<float>(n, 1), p0 = random_vector<float>(n, 2);
  const auto check = [&]<class Moment>(Moment) {
    const auto m0 = random_vector<Moment>(n, 3), v0 = random_vector<Moment>(n, 4, 0.0, 1.0);
    StepState state;
    state.lr = 1e-2f, state.clip = 0.5f, state.step = 4;
    for (const int finite : {1, 0}) {
      state.finite = finite;
      Guarded<float> p(p0), joined(n);
      Guarded<bfloat16> copies(n);
      Guarded<uint16_t> low(n);
      Guarded<Moment> m(m0), v(v0), split_m(m0), split_v(v0);
      cpu::split_weights(copies.data(), low.data(), p0.data(), n, {});
      cpu::adamw({p.data()}, m.data(), v.data(), grad.data(), ranges, 2, n, {}, &state, {});
      cpu::adamw({nullptr, copies.data(), low.data()}, split_m.data(), split_v.data(), grad.data(),
                 ranges, 2, n, {}, &state, {});
      cpu::join_weights(joined.data(), copies.data(), low.data(), n, {});
      EXPECT_EQ(same_bits(p.values(), p0), finite == 0);
      EXPECT_TRUE(same_bits(joined.values(), p.values()));
      EXPECT_TRUE(same_bits(split_m.values(), m.values()));
      EXPECT_TRUE(same_bits(split_v.values(), v.values()));
    }
  };
  testing_support::at_each_cpu_level([&] {
    check(0.0f);
    check(bfloat16(0.0f));
  });
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
