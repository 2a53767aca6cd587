#include "kernels/dropout.h"

#include "base/philox.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

template <class T>
std::vector<T> dropped(const std::vector<T>& x, double p, uint32_t site, DropoutDraw draw) {
  Guarded<T> y(static_cast<int64_t>(x.size()));
  cpu::dropout(y.data(), x.data(), static_cast<int64_t>(x.size()), p, site, &draw, cpu::Stream{});
  return y.values();
}

// Element e of a site's stream uses half e % 8 of Philox block e / 8, the lower half of a word
// first.
TEST(Dropout, HalfAWordOfPhiloxDecides) {
  for_float_types([](auto t) {
    using T = decltype(t);
    for (const int64_t n : kSizes) {
      for (const DropoutDraw draw : {DropoutDraw{7, 0}, DropoutDraw{0x123456789abcdef, 3}}) {
        const auto x = random_vector<T>(n, 1);
        std::vector<T> expected;
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t e = draw.number * static_cast<uint64_t>(n) + static_cast<uint64_t>(i);
          const PhiloxBlock block =
              philox4x32({{static_cast<uint32_t>(e / 8), 0, 5, 1}},
                         static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32));
          const uint32_t half = block.word[e % 8 / 2] >> (e % 2 * 16) & 0xffffu;
          const bool kept = half >= 0x4000u;  // p = 1/4
          using A = acc_t<T>;
          const A scale = static_cast<A>(4.0 / 3.0);
          expected.push_back(static_cast<T>(kept ? static_cast<A>(x[i]) * scale : A(0)));
        }
        EXPECT_TRUE(same_bits(dropped(x, 0.25, 5, draw), expected)) << n;
      }
    }
  });
}

// 1e5 elements: the kept share is within five standard deviations, sqrt(p (1 - p) / n).
TEST(Dropout, KeepsTheShareItShould) {
  const std::vector<float> ones(100000, 1.0f);
  for (const double p : {0.0, 0.01, 0.2, 0.5, 0.99}) {
    const auto y = dropped(ones, p, 0, {1, 0});
    double kept = 0.0;
    for (const float value : y) kept += value != 0.0f;
    EXPECT_NEAR(kept / 1e5, 1.0 - p, 5.0 * std::sqrt(p * (1.0 - p) / 1e5)) << p;
  }
}

// p is rounded to units of 2^-16, and the scale follows the rounded value.
TEST(Dropout, TheExpectationIsExact) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.2), 13107u);
  EXPECT_EQ(dropout_threshold(1e-9), 1u);
  EXPECT_EQ(dropout_threshold(1.0 - 1e-9), 65535u);
  EXPECT_EQ(dropout_scale(0.0), 1.0);
  EXPECT_EQ(dropout_scale(0.5), 2.0);
  EXPECT_EQ(dropout_scale(0.2), 65536.0 / 52429.0);
  const auto y = dropped(std::vector<float>(1000, 3.0f), 0.2, 0, {1, 0});
  for (const float value : y) {
    if (value != 0.0f) {
      EXPECT_EQ(value, 3.0f * static_cast<float>(65536.0 / 52429.0));
    }
  }
}

TEST(Dropout, SitesSeedsAndNumbersGiveOtherMasks) {
  const std::vector<float> ones(1000, 1.0f);
  const auto first = dropped(ones, 0.5, 0, {1, 0});
  EXPECT_TRUE(same_bits(dropped(ones, 0.5, 0, {1, 0}), first));
  EXPECT_FALSE(same_bits(dropped(ones, 0.5, 1, {1, 0}), first));
  EXPECT_FALSE(same_bits(dropped(ones, 0.5, 0, {2, 0}), first));
  EXPECT_FALSE(same_bits(dropped(ones, 0.5, 0, {1, 1}), first));
}

// Two micro-batches of 33 get the masks of one of 66.
TEST(Dropout, MicroBatchesArePartsOfOneStream) {
  const auto x = random_vector<float>(66, 1);
  auto whole = dropped(x, 0.5, 3, {1, 2});
  const std::vector<float> first(x.begin(), x.begin() + 33), second(x.begin() + 33, x.end());
  auto parts = dropped(first, 0.5, 3, {1, 4});
  const auto rest = dropped(second, 0.5, 3, {1, 5});
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_TRUE(same_bits(parts, whole));
}

TEST(Dropout, InPlaceAndOnAnyNumberOfThreads) {
  const auto x = random_vector<float>(100001, 1);
  expect_thread_count_does_not_matter([&] { return dropped(x, 0.3, 1, {9, 1}); });
  Guarded<float> in_place(x);
  const DropoutDraw draw{9, 1};
  cpu::dropout(in_place.data(), in_place.data(), 100001, 0.3, 1, &draw, cpu::Stream{});
  EXPECT_TRUE(same_bits(in_place.values(), dropped(x, 0.3, 1, {9, 1})));
}

TEST(Dropout, DrawsAreCounted) {
  DropoutDraw state{4, 7, 3}, draw;
  cpu::next_draw(&draw, &state, cpu::Stream{});
  EXPECT_EQ(draw.number, 7u);
  EXPECT_EQ(draw.seed, 4u);
  EXPECT_EQ(state.number, 10u);
}

}  // namespace
}  // namespace quern::kernels
