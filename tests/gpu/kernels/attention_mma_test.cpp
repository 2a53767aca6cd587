// The portable tensor-core attention on the GPU against scores written out in double: every tile of
// the tables, masks, grouped heads, different lengths, any alignment, and the same bits each time.
#include "kernels/cuda/attention/mma/attention_mma.h"

#include <functional>
#include <tuple>

#include "attention_cases.h"
#include "attention_large.h"
#include "kernels/cuda/attention/attention_variants.h"

namespace quern::test {
namespace {

using Case = AttentionCase;

// With the tiles that fit the case's shared memory.
AttentionKernels<bfloat16> kernels_within() {
  return {
      [](const Case& c, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
         const bfloat16* v, const AttentionShape& s) {
        kernels::cuda::mma_attention_forward(c.shared_kib << 10, {o, lse, q, k, v}, s, Stream{});
      },
      [](const Case& c, bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
         const bfloat16* o, const float* lse, const bfloat16* q, const bfloat16* k,
         const bfloat16* v, const AttentionShape& s, float*) {
        const int64_t limit = c.shared_kib << 10;
        DeviceBuffer<float> scratch(kernels::cuda::mma_attention_backward_scratch(limit, s) / 4);
        kernels::cuda::mma_attention_backward(limit, {dq, dk, dv, d_o, o, lse, q, k, v}, s,
                                              scratch.get(), Stream{});
        scratch.expect_guards_intact();
      }};
}

struct Fixture : AttentionFixture<bfloat16> {
  explicit Fixture(const Case& c) : AttentionFixture<bfloat16>(kernels_within(), c) {}
};

void check_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) check_attention_case<bfloat16>(kernels_within(), c);
}

class AttentionMmaGpu : public GpuTest {};

TEST_F(AttentionMmaGpu, HeadDims) {
  check_all(mma_head_dims({8, 16, 24, 32, 40, 64, 80, 96, 104, 128}));
}

TEST_F(AttentionMmaGpu, WideHeads) {
  std::vector<Case> cases;
  for (const int64_t D : {136, 160, 192, 256}) {
    for (const int64_t shared_kib : {99, 227}) {
      cases.push_back({1, 130, 130, 2, 1, D, true, 0, 0, shared_kib});
      cases.push_back({1, 33, 65, 2, 2, D, false, 0, 0, shared_kib});
    }
  }
  check_all(cases);
}

TEST_F(AttentionMmaGpu, Lengths) {
  check_all(mma_lengths({64, 128}));
}

TEST_F(AttentionMmaGpu, UnalignedRowsTakeTheScalarPath) {
  check_all(mma_unaligned_rows());
  check_all({{1, 130, 130, 2, 1, 128, false, 4, 4}, {1, 70, 70, 2, 1, 256, true, 1, 1, 99}});
}

TEST_F(AttentionMmaGpu, PaddedRows) {
  check_all(mma_padded_rows());
}

TEST_F(AttentionMmaGpu, QueriesWithoutKeys) {
  for (const Case& c : mma_queries_without_keys()) {
    SCOPED_TRACE(::testing::Message() << c);
    Fixture f(c);
    f.forward();
    f.backward();
    expect_blind_outputs(f);
    expect_blind_gradients(f);
  }
}

TEST_F(AttentionMmaGpu, EmptyAndKeysWithoutQueries) {
  check_all({{0, 5, 5, 2, 1, 32, true}});
  Fixture f({1, 0, 7, 2, 1, 32, true});
  expect_zero_key_gradients(f);
}

void check_forward_of(Fixture& f, const std::function<double(int64_t)>& q,
                      const std::function<double(int64_t)>& k) {
  forward_of_products(f, q, k);
  expect_accurate<bfloat16>("o", f.layout.o.take(f.o.download()), f.exact.o, f.naive.o);
  expect_near(f.lse.download(), f.exact.lse, 1e-6, 1e-5);  // up to 304: one rounding is 2e-5
}

// Scores that grow along the keys move the base of every row again and again, and scores of many
// sizes in a row must still give weights that sum to 1.
TEST_F(AttentionMmaGpu, MaximumThatRises) {
  Fixture f({1, 130, 1000, 1, 1, 64, false});
  check_forward_of(
      f, [](int64_t i) { return i % 3; }, [](int64_t j) { return j; });
}

// Keys from 100 on have scores 151 above the others: weights by the first tile's maximum would be
// infinite.
TEST_F(AttentionMmaGpu, ScoresThatJumpBeyondFloats) {
  for (const int64_t D : {64, 128}) {
    Fixture f({1, 200, 300, 1, 1, D, false});
    check_forward_of(
        f, [](int64_t i) { return i % 3 == 0 ? 8.0 : 4.0; },
        [](int64_t j) { return j < 100 ? j % 7 : 300 + j % 3 * 2; });
  }
}

// dQ is summed in any order.
TEST_F(AttentionMmaGpu, WithoutTurns) {
  for (const Case& c :
       {Case{2, 300, 300, 4, 2, 64, true}, Case{1, 150, 37, 4, 4, 80, true},
        Case{1, 90, 600, 2, 1, 128, false}, Case{1, 130, 130, 2, 1, 256, true, 0, 0, 99}}) {
    SCOPED_TRACE(::testing::Message() << c);
    Fixture f(c);
    f.s.deterministic = false;
    f.forward();
    f.backward();
    expect_accurate<bfloat16>("dq", f.layout.q.take(f.dq.download()), f.exact.dq, f.naive.dq);
    const auto keys = f.key_gradients().download();
    expect_accurate<bfloat16>("dk", f.layout.k.take(keys), f.exact.dk, f.naive.dk);
    expect_accurate<bfloat16>("dv", f.layout.v.take(keys), f.exact.dv, f.naive.dv);
    f.dq.expect_guards_intact();
    f.key_gradients().expect_guards_intact();
  }
}

TEST_F(AttentionMmaGpu, BlocksThatWaitGiveTheSameBits) {
  for (const auto& [H, Hk, D, causal] : std::vector<std::tuple<int64_t, int64_t, int64_t, bool>>{
           {2, 2, 64, false}, {4, 2, 128, true}, {8, 8, 128, false}, {3, 1, 16, true}}) {
    SCOPED_TRACE(::testing::Message() << "H " << H << " D " << D << " causal " << causal);
    LargeAttention<bfloat16> run(kernels_within(), H, Hk, 4000, D, causal);
    const std::vector<bfloat16> first = run.backward();
    for (int repeat = 0; repeat < 10; ++repeat) expect_same_bits(run.backward(), first);
    if (HasFatalFailure()) return;
    // Any order gives the same sums, except for the last bits of floats and one rounding to BF16.
    run.s.deterministic = false;
    const std::vector<double> exact = widen(first);
    const std::vector<double> zero(exact.size(), 0.0);
    EXPECT_LE(distance(widen(run.backward()), exact), rounding<bfloat16>() * distance(exact, zero));
  }
}

// The path of an op: the device's own limit picks the tile.
TEST_F(AttentionMmaGpu, DevicesOwnTiles) {
  const AttentionKernels<bfloat16> own = {
      [](const Case&, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
         const bfloat16* v, AttentionShape s) {
        s.portable = true;
        kernels::cuda::attention_forward(o, lse, q, k, v, s, Stream{});
      },
      [](const Case&, bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
         const bfloat16* o, const float* lse, const bfloat16* q, const bfloat16* k,
         const bfloat16* v, AttentionShape s, float* scratch) {
        s.portable = true;
        kernels::cuda::attention_backward(dq, dk, dv, d_o, o, lse, q, k, v, s, {}, scratch,
                                          Stream{});
      }};
  check_attention_case<bfloat16>(own, {1, 70, 70, 2, 1, 256, true});
  check_attention_case<bfloat16>(own, {2, 200, 200, 4, 2, 64, true});
}

TEST_F(AttentionMmaGpu, ThousandRepeatsGiveTheSameBits) {
  for (const int64_t D : {64, 80, 128}) {
    Fixture f({2, 260, 260, 8, 2, D, true});
    expect_same_bits_a_thousand_times(f);
    if (HasFatalFailure()) return;
  }
}

TEST_F(AttentionMmaGpu, RefusesOtherShapes) {
  Fixture f({1, 4, 4, 2, 1, 32, true});
  f.s.scale = 0.0;
  EXPECT_THROW(f.forward(), Error);
  EXPECT_THROW(f.backward(), Error);
  f.s.scale = 1.0;
  f.s.D = 12;
  EXPECT_THROW(f.forward(), Error);
  f.s.D = 264;
  EXPECT_THROW(f.forward(), Error);
}

}  // namespace
}  // namespace quern::test
