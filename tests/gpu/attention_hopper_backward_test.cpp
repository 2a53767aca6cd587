// Hopper's flash attention, backward, against scores written out in double. O and logsumexp come
// from the CUDA-core forward. Skipped where the binary or the GPU cannot run it.
#include "attention_fixture.h"
#include "kernels/cuda/attention_variants.h"

namespace quern::test {
namespace {

using Case = AttentionCase;
using Fixture = AttentionFixture<bfloat16>;

void forward(const Case&, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
             const bfloat16* v, const AttentionShape& s) {
  kernels::cuda::attention_forward(o, lse, q, k, v, s, Stream{});
}

void backward(const Case&, bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
              const bfloat16* o, const float* lse, const bfloat16* q, const bfloat16* k,
              const bfloat16* v, const AttentionShape& s, float* scratch) {
  ASSERT_TRUE(kernels::cuda::hopper_attention_backward_takes(s, dq, dk, dv, d_o, q, k, v));
  kernels::cuda::hopper_attention_backward(dq, dk, dv, d_o, o, lse, q, k, v, s, scratch, Stream{});
}

const AttentionKernels<bfloat16> kKernels{forward, backward};

class AttentionHopperBackwardGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    Fixture f(kKernels, {1, 1, 1, 1, 1, 64, true});
    if (!takes(f)) GTEST_SKIP() << "no code for sm_90a, or another GPU";
  }
  static bool takes(Fixture& f) {
    return kernels::cuda::hopper_attention_backward_takes(
        f.s, f.dq.get(), f.key_gradients().get() + f.layout.k.offset,
        f.key_gradients().get() + f.layout.v.offset, f.d_o.get(), f.q.get(),
        f.key_buffer().get() + f.layout.k.offset, f.key_buffer().get() + f.layout.v.offset);
  }
};

void check(const Case& c) {
  check_attention_case<bfloat16>(kKernels, c);
}

TEST_F(AttentionHopperBackwardGpu, OneTile) {
  for (const int64_t D : {64, 80, 128}) {
    check({1, 64, 64, 1, 1, D, false});
    check({1, 64, 64, 1, 1, D, true});
  }
}

// Around the sizes of tiles: 64 rows a warpgroup, 128 or 192 a block, 64 to 128 in the rings.
TEST_F(AttentionHopperBackwardGpu, Lengths) {
  for (const int64_t D : {64, 80, 128}) {
    for (const bool causal : {false, true}) {
      for (const int64_t T : {1, 2, 63, 65, 79, 97, 127, 129, 160, 193, 200, 321, 450}) {
        check({1, T, T, 2, 1, D, causal});
      }
    }
  }
}

// Long enough for each ring to turn several times.
TEST_F(AttentionHopperBackwardGpu, ManyTurnsOfTheRings) {
  for (const int64_t D : {64, 80, 128}) {
    check({1, 1025, 1025, 1, 1, D, true});
    check({1, 900, 1100, 1, 1, D, false});
  }
}

TEST_F(AttentionHopperBackwardGpu, QueriesAndKeysDiffer) {
  for (const int64_t D : {64, 80, 128}) {
    for (const bool causal : {false, true}) {
      check({2, 1, 77, 6, 2, D, causal});
      check({1, 37, 400, 4, 1, D, causal});
      check({3, 200, 1, 2, 2, D, causal});
      check({1, 129, 511, 2, 2, D, causal});
      check({1, 511, 129, 2, 1, D, causal});
    }
  }
}

TEST_F(AttentionHopperBackwardGpu, GroupedHeadsAndGapsBetweenTokens) {
  for (const int64_t D : {64, 80, 128}) {
    check({2, 200, 200, 6, 2, D, true, 0, 8});
    check({2, 200, 200, 6, 1, D, false, 0, 24});
    check({2, 100, 230, 3, 3, D, true, 8, 8});
  }
}

// More blocks than the GPU runs at a time, of lengths that differ.
TEST_F(AttentionHopperBackwardGpu, ManyBlocks) {
  for (const int64_t D : {64, 80, 128}) {
    check({9, 40, 40, 32, 8, D, true});
    check({3, 260, 260, 25, 5, D, true});
  }
}

// Causal: the first Tq - Tk queries see no key. Whole tiles of them write zeros.
TEST_F(AttentionHopperBackwardGpu, QueriesWithoutKeys) {
  for (const int64_t D : {64, 80, 128}) {
    const Case c{2, 500, 37, 2, 1, D, true};
    check(c);
    Fixture f(kKernels, c);
    f.forward();
    f.backward();
    const auto dq = f.layout.q.take(f.dq.download());
    for (int64_t row = 0; row < c.B * c.Tq; ++row) {
      if (row % c.Tq >= c.Tq - c.Tk) continue;
      for (int64_t i = 0; i < c.H * D; ++i) ASSERT_EQ(dq[row * c.H * D + i], 0.0) << "row " << row;
    }
  }
}

// P of a masked key would overflow: its score may exceed what its row sums to by any amount.
TEST_F(AttentionHopperBackwardGpu, LargeScores) {
  for (const int64_t D : {64, 80, 128}) {
    Fixture f(kKernels, {1, 300, 300, 2, 2, D, true});
    f.s.scale = 8.0;
    f.forward();
    f.backward();
    for (const double g : f.layout.q.take(f.dq.download())) ASSERT_TRUE(std::isfinite(g));
    const auto dkv = f.key_gradients().download();
    for (const double g : f.layout.k.take(dkv)) ASSERT_TRUE(std::isfinite(g));
    for (const double g : f.layout.v.take(dkv)) ASSERT_TRUE(std::isfinite(g));
  }
}

// Every order in which copies and warpgroups can meet gives the same bits.
TEST_F(AttentionHopperBackwardGpu, ThousandRepeats) {
  for (const int64_t D : {64, 80, 128}) {
    Fixture f(kKernels, {4, 330, 330, 12, 4, D, true});
    f.forward();
    f.backward();
    const auto gradients = f.dq.download();  // dk and dv too
    const size_t bytes = gradients.size() * sizeof(bfloat16);
    for (int i = 0; i < 1000; ++i) {
      f.dq.poison();
      f.backward();
      const auto again = f.dq.download();
      if (std::memcmp(again.data(), gradients.data(), bytes) == 0) continue;
      expect_same_bits(again, gradients);
      FAIL() << "repeat " << i << ", D " << D;
    }
  }
}

TEST_F(AttentionHopperBackwardGpu, RefusesWhatItCannotRun) {
  Fixture f(kKernels, {1, 70, 70, 2, 1, 128, true});
  EXPECT_TRUE(takes(f));
  const AttentionShape good = f.s;
  f.s.D = 96;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.q_strides[1] += 1;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.dk_strides[1] += 4;
  EXPECT_FALSE(takes(f));
  f.s = good;
  f.s.Tk = 0;
  EXPECT_FALSE(takes(f));
  Fixture shifted(kKernels, {1, 70, 70, 2, 1, 128, true, 1});
  EXPECT_FALSE(takes(shifted));
}

}  // namespace
}  // namespace quern::test
