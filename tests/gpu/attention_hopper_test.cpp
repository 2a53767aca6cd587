// Hopper's flash attention, forward, against scores written out in double. Skipped where the
// binary or the GPU cannot run it.
#include "attention_fixture.h"
#include "kernels/cuda/attention_variants.h"

namespace quern::test {
namespace {

using Case = AttentionCase;
using Fixture = AttentionFixture<bfloat16>;

void forward(const Case&, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
             const bfloat16* v, const AttentionShape& s) {
  ASSERT_TRUE(kernels::cuda::hopper_attention_takes(s, q, k, v, o));
  kernels::cuda::hopper_attention_forward(o, lse, q, k, v, s, Stream{});
}

const AttentionKernels<bfloat16> kKernels{forward, nullptr};

class AttentionHopperGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    Fixture f(kKernels, {1, 1, 1, 1, 1, 64, true});
    if (!takes(f)) GTEST_SKIP() << "no code for sm_90a, or another GPU";
  }
  static bool takes(Fixture& f) {
    return kernels::cuda::hopper_attention_takes(
        f.s, f.q.get(), f.key_buffer().get() + f.layout.k.offset,
        f.key_buffer().get() + f.layout.v.offset, f.o.get());
  }
};

void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  Fixture f(kKernels, c);
  const auto o = run_twice(f.o, [&] { f.forward(); });
  f.lse.expect_guards_intact();
  expect_accurate<bfloat16>("o", f.layout.o.take(o), f.exact.o, f.naive.o);
  // Scores of up to about 20, before their scale up to 200 and off by 2^-22 of that in each of 8
  // truncated sums.
  expect_near(f.lse.download(), f.exact.lse, 1e-6, 4e-5);
}

TEST_F(AttentionHopperGpu, OneTile) {
  for (const int64_t D : {64, 80, 128}) {
    check({1, 64, 64, 1, 1, D, false});
    check({1, 64, 64, 1, 1, D, true});
  }
}

// Around the sizes of tiles: 64 rows a warpgroup, 128 or 192 queries, 96 to 176 keys.
TEST_F(AttentionHopperGpu, Lengths) {
  for (const int64_t D : {64, 80, 128}) {
    for (const bool causal : {false, true}) {
      for (const int64_t T : {1, 2, 63, 65, 95, 97, 127, 129, 160, 177, 193, 321, 450}) {
        check({1, T, T, 2, 1, D, causal});
      }
    }
  }
}

TEST_F(AttentionHopperGpu, QueriesAndKeysDiffer) {
  for (const int64_t D : {64, 80, 128}) {
    for (const bool causal : {false, true}) {
      check({2, 1, 77, 6, 2, D, causal});
      check({1, 37, 400, 4, 1, D, causal});
      check({3, 200, 1, 2, 2, D, causal});
      check({1, 129, 511, 2, 2, D, causal});
    }
  }
}

TEST_F(AttentionHopperGpu, GroupedHeadsAndGapsBetweenTokens) {
  for (const int64_t D : {64, 80, 128}) {
    check({2, 200, 200, 6, 2, D, true, 0, 8});
    check({2, 200, 200, 6, 1, D, false, 0, 24});
    check({2, 100, 230, 3, 3, D, true, 8, 8});
  }
}

// More tiles of queries than the GPU has multiprocessors, so that blocks take several, of lengths
// that differ.
TEST_F(AttentionHopperGpu, ManyItemsABlock) {
  for (const int64_t D : {64, 80, 128}) {
    check({20, 40, 40, 32, 8, D, true});
    check({4, 260, 260, 17, 1, D, true});
    check({9, 20, 200, 32, 4, D, false});
  }
}

TEST_F(AttentionHopperGpu, QueriesWithoutKeys) {
  for (const int64_t D : {64, 80, 128}) {
    const Case c{2, 500, 37, 2, 1, D, true};
    SCOPED_TRACE(::testing::Message() << c);
    check(c);
    Fixture f(kKernels, c);
    f.forward();
    const auto o = f.layout.o.take(f.o.download());
    const auto lse = f.lse.download();
    for (int64_t row = 0; row < c.B * c.H * c.Tq; ++row) {
      const int64_t i = row % c.Tq, h = row / c.Tq % c.H, b = row / c.Tq / c.H;
      if (i >= c.Tq - c.Tk) continue;
      ASSERT_EQ(lse[row], -INFINITY) << "row " << row;
      for (int64_t d = 0; d < D; ++d) ASSERT_EQ(o[((b * c.Tq + i) * c.H + h) * D + d], 0.0);
    }
  }
}

// Large scores: the running maximum moves by more than a float's exponent covers.
TEST_F(AttentionHopperGpu, LargeScores) {
  for (const int64_t D : {64, 80, 128}) {
    Fixture f(kKernels, {1, 300, 300, 2, 2, D, true});
    f.s.scale = 8.0;
    naive_attention(f.exact, f.s, [](double x) { return x; });
    naive_attention(f.naive, f.s, [](double x) { return widen(bfloat16(static_cast<float>(x))); });
    const auto o = run_twice(f.o, [&] { f.forward(); });
    expect_accurate<bfloat16>("o", f.layout.o.take(o), f.exact.o, f.naive.o);
    // As above, for scores of up to 1600.
    expect_near(f.lse.download(), f.exact.lse, 1e-6, 4e-3);
  }
}

// Every order in which copies and warpgroups can meet gives the same bits.
TEST_F(AttentionHopperGpu, ThousandRepeats) {
  for (const int64_t D : {64, 80, 128}) {
    for (const bool causal : {false, true}) {
      Fixture f(kKernels, {4, 40, 170, 36, 4, D, causal});
      f.forward();
      const auto o = f.o.download();
      const auto lse = f.lse.download();
      for (int i = 0; i < 1000; ++i) {
        f.o.poison();
        f.lse.poison();
        f.forward();
        expect_same_bits(f.o.download(), o);
        expect_same_bits(f.lse.download(), lse);
        if (HasFailure()) FAIL() << "repeat " << i << ", D " << D;
      }
    }
  }
}

TEST_F(AttentionHopperGpu, RefusesWhatItCannotRun) {
  Fixture f(kKernels, {1, 70, 70, 2, 1, 128, true});
  EXPECT_TRUE(takes(f));
  const AttentionShape good = f.s;
  f.s.D = 96;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.scale = -1.0;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.q_strides[1] += 1;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.Tk = 0;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.q_strides[0] = 3;  // of the one batch: never used
  EXPECT_TRUE(takes(f));
  Fixture shifted(kKernels, {1, 70, 70, 2, 1, 128, true, 1});
  EXPECT_FALSE(takes(shifted));
}

}  // namespace
}  // namespace quern::test
