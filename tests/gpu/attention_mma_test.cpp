// The portable tensor-core attention on the GPU against scores written out in double: every tile of
// the tables, masks, grouped heads, lengths that differ, any alignment, and the same bits each
// time.
#include "kernels/cuda/attention_mma.h"

#include <functional>
#include <tuple>

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
             const bfloat16* v, const AttentionShape& s, float*) {
            const int64_t limit = c.shared_kib << 10;
            DeviceBuffer<float> scratch(
                kernels::cuda::mma_attention_backward_scratch_within(limit, s) / 4);
            kernels::cuda::mma_attention_backward_within(limit, dq, dk, dv, d_o, o, lse, q, k, v, s,
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

// Fixture f with q[i] and k[j] in feature 0 and zeros elsewhere.
void check_forward_of(Fixture& f, const std::function<double(int64_t)>& q,
                      const std::function<double(int64_t)>& k) {
  const auto fill = [&](std::vector<double>& x, int64_t T, const auto& value) {
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t d = 0; d < f.c.D; ++d) {
        x[t * f.c.D + d] = d == 0 ? widen(bfloat16(static_cast<float>(value(t)))) : 0.0;
      }
    }
  };
  fill(f.exact.q, f.c.Tq, q);
  fill(f.exact.k, f.c.Tk, k);
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

// dQ summed in any order.
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

// Large enough that blocks of a head run side by side and wait for each other; too large for the
// reference. Its q, k, v and gradients are packed.
struct LargeRun {
  static constexpr int64_t kLimit = 227 << 10;
  AttentionShape s;
  int64_t n, nk;
  DeviceBuffer<bfloat16> q, k, v, d_o, o, dq, dk, dv;
  DeviceBuffer<float> lse;

  LargeRun(int64_t H, int64_t Hk, int64_t T, int64_t D, bool causal)
      : s(shape(H, Hk, T, D, causal)),
        n(T * H * D),
        nk(T * Hk * D),
        q(random_values<bfloat16>(n, 1)),
        k(random_values<bfloat16>(nk, 2)),
        v(random_values<bfloat16>(nk, 3)),
        d_o(random_values<bfloat16>(n, 4)),
        o(n),
        dq(n),
        dk(nk),
        dv(nk),
        lse(H * T) {
    kernels::cuda::mma_attention_forward_within(kLimit, o.get(), lse.get(), q.get(), k.get(),
                                                v.get(), s, Stream{});
  }

  static AttentionShape shape(int64_t H, int64_t Hk, int64_t T, int64_t D, bool causal) {
    AttentionShape s;
    s.B = 1;
    s.Tq = s.Tk = T;
    s.H = H;
    s.Hk = Hk;
    s.D = D;
    s.causal = causal;
    s.scale = 1.0 / std::sqrt(static_cast<double>(D));
    for (auto* x : {&s.q_strides, &s.o_strides, &s.dq_strides, &s.do_strides}) {
      (*x)[0] = T * H * D;
      (*x)[1] = H * D;
      (*x)[2] = D;
    }
    for (auto* x : {&s.k_strides, &s.v_strides, &s.dk_strides, &s.dv_strides}) {
      (*x)[0] = T * Hk * D;
      (*x)[1] = Hk * D;
      (*x)[2] = D;
    }
    return s;
  }

  // dq, dk and dv, one after the other.
  std::vector<bfloat16> backward(bool deterministic) {
    for (auto* x : {&dq, &dk, &dv}) x->poison();
    s.deterministic = deterministic;
    DeviceBuffer<float> scratch(kernels::cuda::mma_attention_backward_scratch_within(kLimit, s) /
                                4);
    kernels::cuda::mma_attention_backward_within(kLimit, dq.get(), dk.get(), dv.get(), d_o.get(),
                                                 o.get(), lse.get(), q.get(), k.get(), v.get(), s,
                                                 scratch.get(), Stream{});
    scratch.expect_guards_intact();
    std::vector<bfloat16> all;
    for (auto* x : {&dq, &dk, &dv}) {
      x->expect_guards_intact();
      const auto values = x->download();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

TEST_F(AttentionMmaGpu, BlocksThatWaitGiveTheSameBits) {
  for (const auto& [H, Hk, D, causal] : std::vector<std::tuple<int64_t, int64_t, int64_t, bool>>{
           {2, 2, 64, false}, {4, 2, 128, true}, {8, 8, 128, false}, {3, 1, 16, true}}) {
    SCOPED_TRACE(::testing::Message() << "H " << H << " D " << D << " causal " << causal);
    LargeRun run(H, Hk, 4000, D, causal);
    const std::vector<bfloat16> first = run.backward(true);
    for (int repeat = 0; repeat < 10; ++repeat) expect_same_bits(run.backward(true), first);
    if (HasFatalFailure()) return;
    // In any order: the same sums, but for the last bits of floats and one rounding to BF16.
    const std::vector<double> exact = widen(first);
    const std::vector<double> zero(exact.size(), 0.0);
    EXPECT_LE(distance(widen(run.backward(false)), exact),
              rounding<bfloat16>() * distance(exact, zero));
  }
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
         const bfloat16* v, const AttentionShape& s, float*) {
        DeviceBuffer<float> scratch(kernels::cuda::mma_attention_backward_scratch(s) / 4);
        kernels::cuda::mma_attention_backward(dq, dk, dv, d_o, o, lse, q, k, v, s, scratch.get(),
                                              Stream{});
        scratch.expect_guards_intact();
      }};
  check_attention_case<bfloat16>(own, {1, 70, 70, 2, 1, 256, true});
  check_attention_case<bfloat16>(own, {2, 200, 200, 4, 2, 64, true});
}

// A copy that is read before it arrived, or overwritten while it is read, shows sooner or later.
TEST_F(AttentionMmaGpu, ThousandRepeatsGiveTheSameBits) {
  for (const int64_t D : {64, 80, 128}) {
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
