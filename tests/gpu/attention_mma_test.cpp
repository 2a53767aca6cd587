// The portable tensor-core attention on the GPU against scores written out in double: every tile of
// the tables, masks, grouped heads, lengths that differ, any alignment, and the same bits each
// time.
#include "kernels/cuda/attention_mma.h"

#include "attention_fixture.h"
#include "kernels/cuda/attention_variants.h"

namespace quern::test {
namespace {

using Case = AttentionCase;

// With the tiles that fit the case's shared memory.
AttentionKernels<bfloat16> kernels_within() {
  return {[](const Case& c, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
             const bfloat16* v, const AttentionShape& s) {
            kernels::cuda::mma_attention_forward_within(c.shared_kib << 10, o, lse, q, k, v, s,
                                                        Stream{});
          },
          [](const Case& c, bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
             const bfloat16* o, const float* lse, const bfloat16* q, const bfloat16* k,
             const bfloat16* v, const AttentionShape& s, float* delta) {
            kernels::cuda::mma_attention_backward_within(c.shared_kib << 10, dq, dk, dv, d_o, o,
                                                         lse, q, k, v, s, delta, Stream{});
          }};
}

struct Fixture : AttentionFixture<bfloat16> {
  explicit Fixture(const Case& c) : AttentionFixture<bfloat16>(kernels_within(), c) {}
};

void check_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) check_attention_case<bfloat16>(kernels_within(), c);
}

class AttentionMmaGpu : public GpuTest {};

// More rows than one tile of 128, and a last tile that is not full.
TEST_F(AttentionMmaGpu, HeadDims) {
  std::vector<Case> cases;
  for (const int64_t D : {8, 16, 24, 32, 40, 64, 80, 96, 104, 128}) {
    for (const int64_t shared_kib : {99, 227}) {
      cases.push_back({2, 130, 130, 2, 2, D, true, 0, 0, shared_kib});
      cases.push_back({1, 67, 67, 4, 2, D, false, 0, 0, shared_kib});
    }
  }
  check_all(cases);
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
  std::vector<Case> cases;
  for (const int64_t D : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const int64_t T : {1, 17, 63, 64, 65, 128, 130, 257}) {
        cases.push_back({2, T, T, 2, 1, D, causal});
      }
      cases.push_back({2, 1, 77, 6, 2, D, causal});
      cases.push_back({1, 150, 37, 4, 4, D, causal});  // causal: the first 113 queries see no key
      cases.push_back({1, 37, 300, 4, 1, D, causal});
      cases.push_back({3, 200, 1, 2, 2, D, causal});
    }
  }
  cases.push_back({1, 1025, 1025, 1, 1, 16, true});
  cases.push_back({5, 300, 300, 32, 8, 16, true});  // more blocks than one group of the tile order
  check_all(cases);
}

TEST_F(AttentionMmaGpu, UnalignedRowsTakeTheScalarPath) {
  check_all({{2, 130, 130, 3, 1, 64, true, 1, 0},
             {2, 65, 65, 3, 1, 64, true, 0, 3},
             {1, 40, 90, 2, 2, 80, true, 3, 5},
             {1, 130, 130, 2, 1, 128, false, 4, 4},
             {1, 70, 70, 2, 1, 256, true, 1, 1, 99}});
}

// 16-byte rows with NaN between them.
TEST_F(AttentionMmaGpu, PaddedRows) {
  check_all({{2, 130, 130, 3, 1, 64, true, 0, 8}, {1, 65, 130, 2, 1, 24, false, 8, 16}});
}

TEST_F(AttentionMmaGpu, QueriesWithoutKeys) {
  for (const Case& c : {Case{1, 200, 37, 2, 1, 64, true}, Case{1, 5, 0, 2, 1, 32, false}}) {
    SCOPED_TRACE(::testing::Message() << c);
    Fixture f(c);
    f.forward();
    f.backward();
    const auto o = f.layout.o.take(f.o.download());
    const auto dq = f.layout.q.take(f.dq.download());
    const auto lse = f.lse.download();
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t i = 0; i < std::min(c.Tq, c.Tq - c.Tk); ++i) {
        ASSERT_EQ(lse[h * c.Tq + i], -INFINITY);
        for (int64_t d = 0; d < c.D; ++d) {
          ASSERT_EQ(o[(i * c.H + h) * c.D + d], 0.0);
          ASSERT_EQ(dq[(i * c.H + h) * c.D + d], 0.0);
        }
      }
    }
  }
}

TEST_F(AttentionMmaGpu, EmptyAndKeysWithoutQueries) {
  check_all({{0, 5, 5, 2, 1, 32, true}});
  Fixture f({1, 0, 7, 2, 1, 32, true});
  f.forward();
  f.backward();
  for (const double g : f.layout.k.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
  for (const double g : f.layout.v.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
}

// Scores that grow along the keys raise the maximum of every row again and again, beyond what the
// softmax lets pass, and scores of many sizes in a row must still give weights that sum to 1.
TEST_F(AttentionMmaGpu, MaximumThatRises) {
  Fixture f({1, 130, 1000, 1, 1, 64, false});
  for (int64_t j = 0; j < f.c.Tk; ++j) {
    for (int64_t d = 0; d < f.c.D; ++d) {
      f.exact.k[j * f.c.D + d] = d == 0 ? widen(bfloat16(static_cast<float>(j))) : 0.0;
    }
  }
  for (int64_t i = 0; i < f.c.Tq; ++i) {
    for (int64_t d = 0; d < f.c.D; ++d) f.exact.q[i * f.c.D + d] = d == 0 ? i % 3 : 0.0;
  }
  f.naive = f.exact;
  naive_attention(f.exact, f.s, [](double x) { return x; });
  naive_attention(f.naive, f.s, [](double x) { return widen(bfloat16(static_cast<float>(x))); });
  std::vector<bfloat16> image(static_cast<size_t>(f.layout.q.buffer_size()));
  f.layout.q.put(image, f.exact.q);
  f.q.upload(image);
  image.resize(static_cast<size_t>(f.layout.k.buffer_size()));
  f.layout.k.put(image, f.exact.k);
  f.layout.v.put(image, f.exact.v);
  f.kv.upload(image);
  f.forward();
  expect_accurate<bfloat16>("o", f.layout.o.take(f.o.download()), f.exact.o, f.naive.o);
  expect_near(f.lse.download(), f.exact.lse, 1e-6, 1e-5);  // up to 250: one rounding is 8e-6
}

// What an op calls: the device's own limit picks the tile.
TEST_F(AttentionMmaGpu, DevicesOwnTiles) {
  const AttentionKernels<bfloat16> own = {
      [](const Case&, bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
         const bfloat16* v, const AttentionShape& s) {
        kernels::cuda::mma_attention_forward(o, lse, q, k, v, s, Stream{});
      },
      [](const Case&, bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
         const bfloat16* o, const float* lse, const bfloat16* q, const bfloat16* k,
         const bfloat16* v, const AttentionShape& s, float* delta) {
        kernels::cuda::mma_attention_backward(dq, dk, dv, d_o, o, lse, q, k, v, s, delta, Stream{});
      }};
  check_attention_case<bfloat16>(own, {1, 70, 70, 2, 1, 256, true});
  check_attention_case<bfloat16>(own, {2, 200, 200, 4, 2, 64, true});
}

// A copy that is read before it arrived, or overwritten while it is read, shows sooner or later.
TEST_F(AttentionMmaGpu, ThousandRepeatsGiveTheSameBits) {
  for (const int64_t D : {64, 128}) {
    Fixture f({2, 260, 260, 8, 2, D, true});
    std::vector<bfloat16> o, gradients;  // dq, dk and dv lie in one buffer
    for (int repeat = 0; repeat < 1000; ++repeat) {
      SCOPED_TRACE(::testing::Message() << "D " << D << " repeat " << repeat);
      f.o.poison();
      f.dq.poison();
      f.forward();
      f.backward();
      const auto o_again = f.o.download();
      const auto gradients_again = f.dq.download();
      if (repeat == 0) {
        o = o_again;
        gradients = gradients_again;
      }
      expect_same_bits(o_again, o);
      expect_same_bits(gradients_again, gradients);
      if (HasFatalFailure()) return;
    }
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
