// Flash attention on the GPU against scores written out in double: every head_dim's tile, masks,
// grouped heads, different lengths, and q, k and v as parts of one buffer.
#include "kernels/attention.h"

#include "attention_cases.h"
#include "kernels/cuda/attention/attention_variants.h"

namespace quern::test {
namespace {

using Case = AttentionCase;

// The CUDA-core kernels, of FP32 tensors, with the tiles that fit the case's shared memory.
AttentionKernels<float> kernels_within() {
  return {
      [](const Case& c, float* o, float* lse, const float* q, const float* k, const float* v,
         const AttentionShape& s) {
        kernels::cuda::scalar_attention_forward(c.shared_kib << 10, {o, lse, q, k, v}, s, Stream{});
      },
      [](const Case& c, float* dq, float* dk, float* dv, const float* d_o, const float* o,
         const float* lse, const float* q, const float* k, const float* v, const AttentionShape& s,
         float* scratch) {
        kernels::cuda::scalar_attention_backward(
            c.shared_kib << 10, {dq, dk, dv, d_o, o, lse, q, k, v}, s, scratch, Stream{});
      }};
}

struct Fixture : AttentionFixture<float> {
  explicit Fixture(const Case& c) : AttentionFixture<float>(kernels_within(), c) {}
};

void check_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) check_attention_case<float>(kernels_within(), c);
}

class AttentionGpu : public GpuTest {};

TEST_F(AttentionGpu, HeadDims) {
  std::vector<Case> cases;
  for (const int64_t D : {8, 16, 24, 32, 40, 64, 80, 96, 104, 128}) {
    cases.push_back({2, 130, 130, 2, 2, D, true});
    cases.push_back({1, 67, 67, 4, 2, D, false});
  }
  check_all(cases);
}

TEST_F(AttentionGpu, WideHeadsOnLargeAndPortableTiles) {
  std::vector<Case> cases;
  for (const int64_t D : {136, 192, 256}) {
    for (const int64_t shared_kib : {99, 227}) {
      cases.push_back({1, 70, 70, 2, 1, D, true, 0, 0, shared_kib});
      cases.push_back({1, 33, 65, 2, 2, D, false, 0, 0, shared_kib});
    }
  }
  check_all(cases);
}

TEST_F(AttentionGpu, Lengths) {
  std::vector<Case> cases;
  for (const bool causal : {false, true}) {
    for (const int64_t T : {1, 31, 33, 64, 65, 257}) cases.push_back({2, T, T, 2, 1, 64, causal});
    cases.push_back({2, 1, 77, 6, 2, 64, causal});
    cases.push_back({1, 100, 37, 4, 4, 32, causal});  // causal: the first 63 queries see no key
    cases.push_back({1, 37, 200, 4, 1, 64, causal});
    cases.push_back({3, 200, 1, 2, 2, 64, causal});
    cases.push_back({1, 1025, 1025, 1, 1, 16, causal});
  }
  check_all(cases);
}

TEST_F(AttentionGpu, UnalignedRowsTakeTheScalarPath) {
  check_all({{2, 65, 65, 3, 1, 64, true, 1, 0},
             {2, 65, 65, 3, 1, 64, true, 0, 3},
             {1, 40, 90, 2, 2, 80, true, 3, 5}});
}

TEST_F(AttentionGpu, QueriesWithoutKeys) {
  for (const Case& c : {Case{1, 100, 37, 2, 1, 32, true}, Case{1, 5, 0, 2, 1, 32, false}}) {
    SCOPED_TRACE(::testing::Message() << c);
    Fixture f(c);
    f.forward();
    f.backward();
    expect_blind_outputs(f);
    expect_blind_gradients(f);
  }
}

TEST_F(AttentionGpu, EmptyAndKeysWithoutQueries) {
  check_all({{0, 5, 5, 2, 1, 32, true}});
  Fixture f({1, 0, 7, 2, 1, 32, true});
  f.forward();
  f.backward();
  for (const double g : f.layout.k.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
  for (const double g : f.layout.v.take(f.dkv.download())) ASSERT_EQ(g, 0.0);
}

// The path of an op: the device's own limit picks the tile.
TEST_F(AttentionGpu, DevicesOwnTiles) {
  Fixture f({1, 70, 70, 2, 1, 256, true});
  kernels::cuda::attention_forward(f.o.get(), f.lse.get(), f.q.get(), f.q.get() + f.layout.k.offset,
                                   f.q.get() + f.layout.v.offset, f.s, Stream{});
  const auto o = f.layout.o.take(f.o.download());
  expect_accurate<float>("o", o, f.exact.o, f.naive.o);
}

TEST_F(AttentionGpu, RefusesOtherShapes) {
  Fixture f({1, 4, 4, 2, 1, 32, true});
  f.s.D = 12;
  EXPECT_THROW(f.forward(), Error);
  f.s.D = 264;
  EXPECT_THROW(f.forward(), Error);
}

}  // namespace
}  // namespace quern::test
