// Hopper's flash attention, backward, against scores written out in double. O and logsumexp come
// from the forward that an op runs. Skipped if the binary or the GPU cannot run it.
#include "attention_cases.h"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/rope.h"

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
  ASSERT_STREQ(
      kernels::cuda::hopper_attention_backward_refusal({dq, dk, dv, d_o, o, lse, q, k, v}, s),
      nullptr);
  kernels::cuda::hopper_attention_backward({dq, dk, dv, d_o, o, lse, q, k, v}, s, {}, scratch,
                                           Stream{});
}

const AttentionKernels<bfloat16> kKernels{forward, backward,
                                          kernels::cuda::hopper_attention_backward_scratch};

class AttentionHopperBackwardGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    Fixture f(kKernels, {1, 1, 1, 1, 1, 64, true});
    if (!takes(f)) GTEST_SKIP() << "no code for sm_90a, or another GPU";
  }
  static bool takes(Fixture& f) {
    return kernels::cuda::hopper_attention_backward_refusal(
               {f.dq.get(), f.key_gradients().get() + f.layout.k.offset,
                f.key_gradients().get() + f.layout.v.offset, f.d_o.get(), f.o.get(), f.lse.get(),
                f.q.get(), f.key_buffer().get() + f.layout.k.offset,
                f.key_buffer().get() + f.layout.v.offset},
               f.s) == nullptr;
  }
};

void check(const Case& c) {
  check_attention_case<bfloat16>(kKernels, c);
}

TEST_F(AttentionHopperBackwardGpu, OneTile) {
  for (const Case& c : hopper_one_tile()) check(c);
}

TEST_F(AttentionHopperBackwardGpu, Lengths) {
  for (const Case& c : hopper_lengths()) check(c);
}

// Long enough for each ring to turn several times.
TEST_F(AttentionHopperBackwardGpu, ManyTurnsOfTheRings) {
  for (const int64_t D : kHopperDims) {
    check({1, 1025, 1025, 1, 1, D, true});
    check({1, 900, 1100, 1, 1, D, false});
  }
}

TEST_F(AttentionHopperBackwardGpu, QueriesAndKeysDiffer) {
  for (const Case& c : hopper_queries_and_keys_differ()) check(c);
}

TEST_F(AttentionHopperBackwardGpu, GroupedHeadsAndGapsBetweenTokens) {
  for (const Case& c : hopper_grouped_heads_and_gaps()) check(c);
}

TEST_F(AttentionHopperBackwardGpu, HeadsNarrowerThanTheirTile) {
  for (const Case& c : hopper_padded_heads(kernels::cuda::kPortableBackwardHead)) {
    SCOPED_TRACE(::testing::Message() << c);
    check(c);
    Fixture f(kKernels, c);
    f.forward();
    f.backward();
    expect_gaps_poisoned(c, f.together() ? f.layout.v : f.layout.q, f.dq.download());
    expect_gaps_poisoned(c, f.layout.v, f.key_gradients().download());
  }
}

// More blocks than run at a time, of different lengths. On 132 multiprocessors a kv head's group is
// split into as many parts as it has heads, into two unequal ones, or not at all. From the third
// size on, the last heads begin with their first key tiles at nearly every D.
TEST_F(AttentionHopperBackwardGpu, ManyBlocks) {
  for (const int64_t D : kHopperDims) {
    check({9, 40, 40, 32, 8, D, true});
    check({3, 260, 260, 25, 5, D, true});
    check({11, 260, 260, 25, 5, D, true});
    check({30, 130, 130, 12, 4, D, true});
    check({60, 130, 130, 12, 4, D, true});
    check({7, 200, 200, 51, 51, D, true});
  }
}

// Two items a block, whole groups and halves of them: the middle key tiles first.
TEST_F(AttentionHopperBackwardGpu, PairsOfItems) {
  check({12, 500, 500, 8, 4, 64, true});
  check({6, 500, 500, 16, 4, 128, true});
  check({8, 250, 250, 16, 8, 192, true});
  check({4, 250, 250, 32, 8, 256, true});
}

// More counters than rows of queries. The kernel before sets them to 0.
TEST_F(AttentionHopperBackwardGpu, OneQueryAndManyKeys) {
  for (const int64_t D : kHopperDims) {
    Fixture f(kKernels, {1, 1, 17000, 1, 1, D, true});
    f.forward();
    f.backward();
    const auto dkv = f.key_gradients().download();
    expect_accurate<bfloat16>("dq", f.layout.q.take(f.dq.download()), f.exact.dq, f.naive.dq);
    expect_accurate<bfloat16>("dk", f.layout.k.take(dkv), f.exact.dk, f.naive.dk);
    expect_accurate<bfloat16>("dv", f.layout.v.take(dkv), f.exact.dv, f.naive.dv);
  }
}

// Causal: the first Tq - Tk queries see no key. Whole tiles of them write zeros.
TEST_F(AttentionHopperBackwardGpu, QueriesWithoutKeys) {
  for (const int64_t D : kHopperDims) {
    const Case c{2, 500, 37, 2, 1, D, true};
    check(c);
    Fixture f(kKernels, c);
    f.forward();
    f.backward();
    expect_blind_gradients(f);
  }
}

// P of a masked key would overflow: its score may exceed its row's logsumexp by any amount.
TEST_F(AttentionHopperBackwardGpu, LargeScores) {
  for (const int64_t D : kHopperDims) {
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

// In double: the gradients (B, T, heads, D), rotated back.
std::vector<double> rotated_back(const std::vector<double>& x, int64_t T, int64_t heads,
                                 const Case& c, const std::vector<float>& cos,
                                 const std::vector<float>& sin) {
  std::vector<double> y(x.size());
  const int64_t row = heads * c.D;
  const kernels::RopeLayout layout{c.B, T, heads, c.D, {T * row, row, c.D}, {T * row, row, c.D}};
  kernels::cpu::rope<double>(y.data(), x.data(), widen(cos).data(), widen(sin).data(), nullptr,
                             layout, true, {});
  return y;
}

// With a rotary table: the gradients of q and k as they were before RoPE.
TEST_F(AttentionHopperBackwardGpu, RotatesBack) {
  std::vector<int64_t> dims = hopper_dims_and({});
  dims.insert(dims.end(), std::begin(kHopperPaddedDims), std::end(kHopperPaddedDims));
  for (const int64_t D : dims) {
    for (const Case& c : {Case{2, 333, 333, 6, 2, D, true}, Case{1, 70, 200, 2, 2, D, false},
                          Case{1, 200, 70, 2, 1, D, true}}) {
      SCOPED_TRACE(::testing::Message() << c);
      std::vector<float> cos, sin;  // of angles, so that no length changes
      for (const float angle : random_values<float>(400 * D / 2, 7, -3.0, 3.0)) {
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
      DeviceBuffer<float> device_cos(cos), device_sin(sin);
      Fixture f({forward,
                 [&](const Case&, bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
                     const bfloat16* o, const float* lse, const bfloat16* q, const bfloat16* k,
                     const bfloat16* v, const AttentionShape& s, float* scratch) {
                   kernels::cuda::hopper_attention_backward({dq, dk, dv, d_o, o, lse, q, k, v}, s,
                                                            {device_cos.get(), device_sin.get()},
                                                            scratch, Stream{});
                 },
                 kernels::cuda::hopper_attention_backward_scratch},
                c);
      f.forward();
      f.backward();
      const auto expect = [&](const char* name, const AttentionPlace& place,
                              const std::vector<bfloat16>& actual, const std::vector<double>& exact,
                              const std::vector<double>& naive) {
        expect_accurate<bfloat16>(name, place.take(actual),
                                  rotated_back(exact, place.T, place.heads, c, cos, sin),
                                  rotated_back(naive, place.T, place.heads, c, cos, sin));
      };
      expect("dq", f.layout.q, f.dq.download(), f.exact.dq, f.naive.dq);
      expect("dk", f.layout.k, f.key_gradients().download(), f.exact.dk, f.naive.dk);
    }
  }
}

// Sums in any order: equally accurate, but not the same bits.
TEST_F(AttentionHopperBackwardGpu, WithoutDeterminism) {
  for (const int64_t D : hopper_dims_and({72, 136})) {
    for (const bool causal : {false, true}) {
      const Case c{1, 700, 700, 2, 1, D, causal};
      SCOPED_TRACE(::testing::Message() << c);
      Fixture f(kKernels, c);
      f.s.deterministic = false;
      f.forward();
      f.backward();
      expect_accurate<bfloat16>("dq", f.layout.q.take(f.dq.download()), f.exact.dq, f.naive.dq);
      expect_accurate<bfloat16>("dk", f.layout.k.take(f.dq.download()), f.exact.dk, f.naive.dk);
      expect_accurate<bfloat16>("dv", f.layout.v.take(f.dq.download()), f.exact.dv, f.naive.dv);
    }
  }
}

void expect_same_gradients_each_time(const Case& c, int times = 20) {
  SCOPED_TRACE(::testing::Message() << c);
  Fixture f(kKernels, c);
  f.forward();
  f.backward();
  const auto gradients = f.dq.download();  // dk and dv too
  const size_t bytes = gradients.size() * sizeof(bfloat16);
  for (int i = 0; i < times; ++i) {
    f.dq.poison();
    f.backward();
    const auto again = f.dq.download();
    if (std::memcmp(again.data(), gradients.data(), bytes) == 0) continue;
    expect_same_bits(again, gradients);
    FAIL() << "repeat " << i;
  }
}

// Long sequences, whose blocks wait for each other's sums. The last tile of keys has 120 (of 64:
// 56) or 44.
TEST_F(AttentionHopperBackwardGpu, ManyTurnsGiveTheSameBits) {
  for (const int64_t D : hopper_dims_and({112, 160})) {
    expect_same_gradients_each_time({1, 1400, 1400, 1, 1, D, true});
    expect_same_gradients_each_time({1, 1324, 1324, 1, 1, D, false});
  }
}

// Many heads, of which the last ones begin with their first key tiles.
TEST_F(AttentionHopperBackwardGpu, ReversedHeadsGiveTheSameBits) {
  expect_same_gradients_each_time({9, 500, 500, 10, 10, 64, true});
  expect_same_gradients_each_time({9, 500, 500, 20, 10, 128, true});
  expect_same_gradients_each_time({6, 500, 500, 8, 8, 192, true});
}

// Every order in which copies and warpgroups can meet gives the same bits.
TEST_F(AttentionHopperBackwardGpu, ThousandRepeats) {
  for (const int64_t D : hopper_dims_and({72, 88, 136})) {
    expect_same_gradients_each_time({2, 330, 330, 8, 4, D, true}, 1000);
  }
}

TEST_F(AttentionHopperBackwardGpu, RefusesWhatItCannotRun) {
  Fixture f(kKernels, {1, 70, 70, 2, 1, 128, true});
  EXPECT_TRUE(takes(f));
  const AttentionShape good = f.s;
  f.s.D = kernels::cuda::kPortableBackwardHead;
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
