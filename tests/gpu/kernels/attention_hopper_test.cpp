// Hopper's flash attention, forward, against scores written out in double. Skipped if the binary or
// the GPU cannot run it.
#include "attention_cases.h"
#include "kernels/cuda/attention/attention_variants.h"

namespace quern::test {
namespace {

using Case = AttentionCase;
using Fixture = AttentionFixture<bfloat16>;

void forward(const Case&, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
             const bfloat16* v, const AttentionShape& s) {
  ASSERT_STREQ(kernels::cuda::hopper_attention_refusal({o, lse, q, k, v}, s), nullptr);
  kernels::cuda::hopper_attention_forward({o, lse, q, k, v}, s, Stream{});
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
    return kernels::cuda::hopper_attention_refusal(
               {f.o.get(), f.lse.get(), f.q.get(), f.key_buffer().get() + f.layout.k.offset,
                f.key_buffer().get() + f.layout.v.offset},
               f.s) == nullptr;
  }
};

void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  Fixture f(kKernels, c);
  const auto o = run_twice(f.o, [&] { f.forward(); });
  f.lse.expect_guards_intact();
  expect_accurate<bfloat16>("o", f.layout.o.take(o), f.exact.o, f.naive.o);
  // Scores of up to about 20, before their scale up to 320 and off by 2^-22 of that in each of up
  // to 16 truncated sums, which seldom all err in one direction.
  expect_near(f.lse.download(), f.exact.lse, 1e-6, 4e-5);
}

TEST_F(AttentionHopperGpu, OneTile) {
  for (const Case& c : hopper_one_tile()) check(c);
}

TEST_F(AttentionHopperGpu, Lengths) {
  for (const Case& c : hopper_lengths()) check(c);
}

TEST_F(AttentionHopperGpu, QueriesAndKeysDiffer) {
  for (const Case& c : hopper_queries_and_keys_differ()) check(c);
}

TEST_F(AttentionHopperGpu, GroupedHeadsAndGapsBetweenTokens) {
  for (const Case& c : hopper_grouped_heads_and_gaps()) check(c);
}

TEST_F(AttentionHopperGpu, HeadsNarrowerThanTheirTile) {
  for (const Case& c : hopper_padded_heads(kernels::cuda::kPortableForwardHead)) {
    SCOPED_TRACE(::testing::Message() << c);
    check(c);
    Fixture f(kKernels, c);
    f.forward();
    expect_gaps_poisoned(c, f.layout.o, f.o.download());
  }
}

// More tiles of queries than the GPU has multiprocessors: blocks take several, of different
// lengths.
TEST_F(AttentionHopperGpu, ManyItemsABlock) {
  for (const int64_t D : kHopperDims) {
    check({20, 40, 40, 32, 8, D, true});
    check({4, 260, 260, 17, 1, D, true});
    check({9, 20, 200, 32, 4, D, false});
  }
}

// Heads of two and of three tiles: blocks take pairs of tiles, and at the end single ones.
TEST_F(AttentionHopperGpu, PairsAndThenSingleTiles) {
  check({13, 200, 200, 32, 8, 64, true});
  check({5, 260, 260, 48, 8, 128, true});
}

TEST_F(AttentionHopperGpu, QueriesWithoutKeys) {
  for (const int64_t D : kHopperDims) {
    const Case c{2, 500, 37, 2, 1, D, true};
    SCOPED_TRACE(::testing::Message() << c);
    check(c);
    Fixture f(kKernels, c);
    f.forward();
    expect_blind_outputs(f);
  }
}

// Large scores: the running maximum moves by more than a float's exponent covers.
TEST_F(AttentionHopperGpu, LargeScores) {
  for (const int64_t D : kHopperDims) {
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

// Scores q[i] k[j], exact in BF16, of 200 queries and 1000 keys; the scale is 1.
void check_products(const std::function<double(int64_t)>& q,
                    const std::function<double(int64_t)>& k) {
  for (const int64_t D : kHopperDims) {
    for (const bool causal : {false, true}) {
      Fixture f(kKernels, {1, 200, 1000, 1, 1, D, causal});
      SCOPED_TRACE(::testing::Message() << f.c);
      f.s.scale = 1.0;
      forward_of_products(f, q, k);
      expect_accurate<bfloat16>("o", f.layout.o.take(f.o.download()), f.exact.o, f.naive.o);
      expect_near(f.lse.download(), f.exact.lse, 1e-6, 4e-5);
    }
  }
}

// Falls by 16 every 16 keys. The kernel walks the keys from the last tile to the first; a tile has
// at least 64. With q = 1, scores rise by at least 64 / ln 2 = 92 in units of log2 from one tile
// to the next: above RowSoftmax::kBaseSlack.
double steep(int64_t j) {
  return -16.0 * static_cast<double>(j / 16);
}

// Every tile moves the base. Steep, gentle and level rows share a warp, so the base also moves in
// rows whose earlier weights still count.
TEST_F(AttentionHopperGpu, ScoresThatRiseSteeply) {
  constexpr double kSlopes[] = {1.0, 1.0 / 64, 0.0, 1.0 / 32, 0.5};
  check_products([&](int64_t i) { return kSlopes[i % 5]; }, steep);
}

TEST_F(AttentionHopperGpu, ScoresThatFallSteeply) {
  constexpr double kSlopes[] = {-1.0, -1.0 / 64, 0.0, -1.0 / 32, 1.0 / 64};
  check_products([&](int64_t i) { return kSlopes[i % 5]; }, steep);
}

// Scores rise by 22 in units of log2 from the last tile to the first: the base stays, and weights
// become large.
TEST_F(AttentionHopperGpu, ScoresThatRiseGently) {
  check_products([](int64_t) { return 1.0 / 64; }, steep);
}

// One row of each fourth warp may move the base of all its rows.
TEST_F(AttentionHopperGpu, OneSteepRow) {
  check_products([](int64_t i) { return i % 64 == 63 ? 1.0 : 1.0 / 64; }, steep);
}

TEST_F(AttentionHopperGpu, HugeEqualScores) {
  constexpr double kSigns[] = {1.0, -1.0, 0.5, 0.0};
  check_products([&](int64_t i) { return kSigns[i % 4]; }, [](int64_t) { return -16384.0; });
}

// Keys from 500 on have no weight: whole tiles come before a row's first finite score.
TEST_F(AttentionHopperGpu, InfiniteNegativeScores) {
  check_products([](int64_t i) { return i % 2 == 0 ? 1.0 : 8.0; },
                 [](int64_t j) { return j < 500 ? 8.0 - static_cast<double>(j % 16) : -INFINITY; });
}

// Every order in which copies and warpgroups can meet gives the same bits.
TEST_F(AttentionHopperGpu, ThousandRepeats) {
  for (const int64_t D : hopper_dims_and({72, 88, 136})) {
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
  f.s.D = kernels::cuda::kPortableForwardHead;
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
