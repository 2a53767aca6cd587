// The tensor-core attention of FP32 tensors on the GPU against scores written out in double, with
// one TF32 part an operand and with two: every tile of the tables, masks, grouped heads, different
// lengths, any alignment, the same bits each time, and the kernel that an op runs.
#include "kernels/cuda/attention/tf32/attention_tf32.h"

#include <cstring>
#include <tuple>

#include "attention_cases.h"
#include "attention_large.h"
#include "kernels/cuda/attention/attention_variants.h"
#include "tensor/cuda_runtime.h"

namespace quern::test {
namespace {

using Case = AttentionCase;
using Kernels = AttentionKernels<float>;
namespace gpu = ::quern::kernels::cuda;

// Below this number of blocks, tiles of fewer rows are taken: never, and always.
constexpr int64_t kLargeTiles = 0, kSmallTiles = int64_t{1} << 40;

// With the tiles that fit the case's shared memory.
Kernels tensor_cores(int64_t blocks) {
  return {
      [blocks](const Case& c, float* o, float* lse, const float* q, const float* k, const float* v,
               const AttentionShape& s) {
        gpu::tf32_attention_forward({c.shared_kib << 10, blocks}, {o, lse, q, k, v}, s, Stream{});
      },
      [blocks](const Case& c, float* dq, float* dk, float* dv, const float* d_o, const float* o,
               const float* lse, const float* q, const float* k, const float* v,
               const AttentionShape& s, float*) {
        const gpu::Tf32Limits limits{c.shared_kib << 10, blocks};
        DeviceBuffer<float> scratch(gpu::tf32_attention_backward_scratch(limits, s) / 4);
        gpu::tf32_attention_backward(limits, {dq, dk, dv, d_o, o, lse, q, k, v}, s, scratch.get(),
                                     Stream{});
        scratch.expect_guards_intact();
      }};
}

Kernels cuda_cores() {
  return {[](const Case& c, float* o, float* lse, const float* q, const float* k, const float* v,
             const AttentionShape& s) {
            gpu::scalar_attention_forward(c.shared_kib << 10, {o, lse, q, k, v}, s, Stream{});
          },
          [](const Case& c, float* dq, float* dk, float* dv, const float* d_o, const float* o,
             const float* lse, const float* q, const float* k, const float* v,
             const AttentionShape& s, float* delta) {
            gpu::scalar_attention_backward(c.shared_kib << 10, {dq, dk, dv, d_o, o, lse, q, k, v},
                                           s, delta, Stream{});
          }};
}

// The kernels that an op calls.
Kernels dispatched() {
  return {[](const Case&, float* o, float* lse, const float* q, const float* k, const float* v,
             const AttentionShape& s) { gpu::attention_forward(o, lse, q, k, v, s, Stream{}); },
          [](const Case&, float* dq, float* dk, float* dv, const float* d_o, const float* o,
             const float* lse, const float* q, const float* k, const float* v,
             const AttentionShape& s, float* delta) {
            gpu::attention_backward(dq, dk, dv, d_o, o, lse, q, k, v, s, {}, delta, Stream{});
          }};
}

struct Fixture : AttentionFixture<float> {
  Fixture(const Case& c, bool tf32, const Kernels& kernels = tensor_cores(kLargeTiles))
      : AttentionFixture<float>(kernels, c) {
    s.tf32 = tf32;
  }
};

struct Results {
  std::vector<double> o, dq, dk, dv;
};

// Runs both directions twice over poison and checks their guards.
Results run(Fixture& f) {
  f.lse.poison();
  Results r;
  r.o = f.layout.o.take(run_twice(f.o, [&] { f.forward(); }));
  f.lse.expect_guards_intact();
  r.dq = f.layout.q.take(run_twice(f.dq, [&] { f.backward(); }));
  const auto dkv = run_twice(f.key_gradients(), [&] { f.backward(); });
  r.dk = f.layout.k.take(dkv);
  r.dv = f.layout.v.take(dkv);
  return r;
}

double round_to_tf32(double x) {  // 11 bits
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

double norm(const std::vector<double>& x) {
  return distance(x, std::vector<double>(x.size(), 0.0));
}

void expect_within(const char* name, const std::vector<double>& actual,
                   const std::vector<double>& exact, double allowed) {
  ASSERT_EQ(actual.size(), exact.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << name << ", element " << i << ": " << actual[i];
  }
  EXPECT_LE(distance(actual, exact), allowed) << name << ", norm " << norm(exact);
}

// Each error is a norm. TF32: twice the error of an op that rounds its inputs and all intermediate
// tensors to TF32. A cancelling sum of terms of size 1 adds FP32's error. With a single key dP -
// delta is zero, but only dP has rounded inputs: off by 2^-12 of a sum of D products of 4/3 in the
// mean square, at most 5e-4 an element of dq. dk sums it over the queries: the same norm.
void check_tf32(Fixture& f, const AttentionArrays& rounded) {
  const Results r = run(f);
  const double of_delta =
      f.c.Tk == 1 ? 5e-4 * std::sqrt(static_cast<double>(f.exact.dq.size())) : 0.0;
  const auto check = [](const char* name, const auto& actual, const auto& exact, const auto& naive,
                        double more) {
    const double in_float = 5e-6 * std::sqrt(static_cast<double>(exact.size()));
    expect_within(name, actual, exact, 2.0 * distance(naive, exact) + in_float + more);
  };
  check("o", r.o, f.exact.o, rounded.o, 0.0);
  check("dq", r.dq, f.exact.dq, rounded.dq, of_delta);
  check("dk", r.dk, f.exact.dk, rounded.dk, of_delta);
  check("dv", r.dv, f.exact.dv, rounded.dv, 0.0);
  // A score is a sum of D products of numbers up to 2, each off by 2^-11 of it, over sqrt(D): it is
  // off by 4e-4 in the mean square, and by up to five times that.
  expect_near(f.lse.download(), f.exact.lse, 0.0, 2e-3);
}

// Two parts: twice the error of the CUDA-core kernel, which computes in FP32 throughout. The low
// part's truncated bits add 2^-23 of an operand, where that kernel may be exact. With one key P is
// 2^(s - lse) = 1 but for the rounding of scores up to 20, which may cancel in that kernel.
void check_split(Fixture& f, const Results& baseline) {
  const Results r = run(f);
  const double of_scores = f.c.Tk == 1 ? 20 * 0x1p-24 : 0.0;
  const auto check = [&](const char* name, const auto& actual, const auto& exact,
                         const auto& expected) {
    const double size = std::sqrt(static_cast<double>(exact.size()));
    const double cut = 0x1p-23 * (norm(exact) + size) + of_scores * norm(exact);
    expect_within(name, actual, exact, 2.0 * distance(expected, exact) + cut);
  };
  check("o", r.o, f.exact.o, baseline.o);
  check("dq", r.dq, f.exact.dq, baseline.dq);
  check("dk", r.dk, f.exact.dk, baseline.dk);
  check("dv", r.dv, f.exact.dv, baseline.dv);
  // Scores of up to about 20, each off by a few 1e-6.
  expect_near(f.lse.download(), f.exact.lse, 1e-6, 1e-5);
}

void check_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    Fixture f(c, false, cuda_cores());
    const Results baseline = run(f);
    AttentionArrays rounded = f.exact;
    for (auto* x : {&rounded.q, &rounded.k, &rounded.v, &rounded.d_o}) {
      for (double& value : *x) value = round_to_tf32(value);
    }
    naive_attention(rounded, f.s, round_to_tf32);
    for (const int64_t blocks : {kLargeTiles, kSmallTiles}) {
      SCOPED_TRACE(::testing::Message() << c << " blocks " << blocks);
      f.kernels = tensor_cores(blocks);
      f.s.tf32 = true;
      check_tf32(f, rounded);
      f.s.tf32 = false;
      check_split(f, baseline);
    }
  }
}

class AttentionTf32Gpu : public GpuTest {};

TEST_F(AttentionTf32Gpu, HeadDims) {
  check_all(mma_head_dims({8, 16, 24, 32, 40, 64, 72, 80, 88, 96, 104, 128}));
}

TEST_F(AttentionTf32Gpu, Lengths) {
  check_all(mma_lengths({32, 64, 128}));
}

TEST_F(AttentionTf32Gpu, UnalignedRowsAreCopiedFloatByFloat) {
  check_all(mma_unaligned_rows());
}

TEST_F(AttentionTf32Gpu, PaddedRows) {
  check_all(mma_padded_rows());
  check_all({{1, 65, 130, 2, 1, 24, false, 4, 12}});
}

TEST_F(AttentionTf32Gpu, QueriesWithoutKeys) {
  for (const bool tf32 : {false, true}) {
    for (const Case& c : mma_queries_without_keys()) {
      SCOPED_TRACE(::testing::Message() << c << " tf32 " << tf32);
      Fixture f(c, tf32);
      f.forward();
      f.backward();
      expect_blind_outputs(f);
      expect_blind_gradients(f);
    }
  }
}

TEST_F(AttentionTf32Gpu, EmptyAndKeysWithoutQueries) {
  check_all({{0, 5, 5, 2, 1, 32, true}});
  for (const bool tf32 : {false, true}) {
    Fixture f({1, 0, 7, 2, 1, 32, true}, tf32);
    expect_zero_key_gradients(f);
  }
}

// Sums of positive numbers over many keys. Sums truncated by the tensor cores would drift by 2^-24
// of the sum at every step: over 4096 keys, hundreds of times the error of FP32.
TEST_F(AttentionTf32Gpu, LongSumsDoNotDrift) {
  const Case c{1, 64, 4096, 1, 1, 64, false};
  Fixture f(c, false), baseline(c, false, cuda_cores());
  for (double& v : f.exact.v) v = widen(static_cast<float>(std::abs(v) + 1.0));
  naive_attention(f.exact, f.s, [](double x) { return x; });
  for (Fixture* each : {&f, &baseline}) {
    std::vector<float> image(static_cast<size_t>(f.layout.k.buffer_size()));
    f.layout.k.put(image, f.exact.k);
    f.layout.v.put(image, f.exact.v);
    each->kv.upload(image);
    each->forward();
  }
  const auto o = f.layout.o.take(f.o.download());
  const auto expected = f.layout.o.take(baseline.o.download());
  expect_within("o", o, f.exact.o, 2.0 * distance(expected, f.exact.o) + 0x1p-23 * norm(f.exact.o));
}

// Scores that grow along the keys raise each row's maximum repeatedly, beyond the softmax's slack.
// Scores of many sizes in a row must still give weights that sum to 1.
TEST_F(AttentionTf32Gpu, MaximumThatRises) {
  for (const bool tf32 : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "tf32 " << tf32);
    Fixture f({1, 130, 1000, 1, 1, 64, false}, tf32);  // products of numbers of 11 bits
    forward_of_products<float>(
        f, [](int64_t i) { return i % 3; }, [](int64_t j) { return j; });
    // P and V rounded to 11 bits, or the FP32 error for scores of up to 250.
    const double relative = tf32 ? 1e-3 : 2e-5;
    expect_within("o", f.layout.o.take(f.o.download()), f.exact.o, relative * norm(f.exact.o));
    expect_near(f.lse.download(), f.exact.lse, 1e-6, tf32 ? 1e-3 : 1e-5);
  }
}

// NaN must stay NaN: rounding by addition would turn the NaN with all bits set into a number.
TEST_F(AttentionTf32Gpu, NaNStaysNaN) {
  for (const bool tf32 : {false, true}) {
    for (const uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu}) {
      SCOPED_TRACE(::testing::Message() << "tf32 " << tf32 << " bits " << bits);
      Fixture f({1, 40, 40, 1, 1, 64, false}, tf32);
      auto image = f.q.download();  // q, k and v of a token lie side by side
      for (const int64_t element :
           {5 * f.layout.q.row + 3, 7 * f.layout.q.row + f.layout.v.offset}) {
        std::memcpy(&image[static_cast<size_t>(element)], &bits, sizeof(bits));
      }
      f.q.upload(image);
      f.forward();
      const auto o = f.layout.o.take(f.o.download());
      for (int64_t d = 0; d < 64; ++d) EXPECT_TRUE(std::isnan(o[5 * 64 + d])) << d;  // of query 5
      for (int64_t i = 0; i < 40; ++i) EXPECT_TRUE(std::isnan(o[i * 64])) << i;      // of value 7
    }
  }
}

// An op runs these kernels, in its mode, and the CUDA-core kernels beyond their head dims.
TEST_F(AttentionTf32Gpu, DispatchTakesThem) {
  const auto bits = [](const Case& c, bool tf32, const Kernels& kernels) {
    Fixture f(c, tf32, kernels);
    f.forward();
    f.backward();
    return std::pair{f.o.download(), f.dq.download()};  // q, k and v side by side
  };
  const auto same = [](const auto& a, const auto& b) {
    const auto equal = [](const std::vector<float>& x, const std::vector<float>& y) {
      return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    };
    return std::pair{equal(a.first, b.first), equal(a.second, b.second)};
  };
  constexpr std::pair kBoth{true, true}, kNeither{false, false};
  const cuda::DeviceInfo device = cuda::device_info(0);
  const int64_t own_kib = device.shared_bytes_per_block >> 10;
  const Kernels own_tiles = tensor_cores(device.multiprocessors);  // more than the cases' 16 blocks
  for (const int64_t D : {24, 64, 128}) {
    const Case c{2, 130, 130, 4, 2, D, true, 0, 0, own_kib};
    for (const bool tf32 : {false, true}) {
      const auto op = bits(c, tf32, dispatched());
      EXPECT_EQ(same(op, bits(c, tf32, own_tiles)), kBoth) << D << " tf32 " << tf32;
      EXPECT_EQ(same(op, bits(c, !tf32, own_tiles)), kNeither) << D << " tf32 " << tf32;
      EXPECT_EQ(same(op, bits(c, tf32, cuda_cores())), kNeither) << D << " tf32 " << tf32;
    }
  }
  const Case wide{1, 70, 70, 2, 1, 136, true, 0, 0, own_kib};
  EXPECT_EQ(same(bits(wide, true, dispatched()), bits(wide, true, cuda_cores())), kBoth);
}

TEST_F(AttentionTf32Gpu, ThousandRepeatsGiveTheSameBits) {
  for (const bool tf32 : {false, true}) {
    for (const int64_t D : {64, 128}) {
      Fixture f({2, 260, 260, 8, 2, D, true}, tf32);
      expect_same_bits_a_thousand_times(f);
      if (HasFatalFailure()) return;
    }
  }
}

// Blocks that wait for each other over many tiles. Split, the gradients are those of the CUDA-core
// kernels, whose sums over 1500 to 4000 keys or queries are in another order: both are off by some
// 1e-6 of the norm.
TEST_F(AttentionTf32Gpu, BlocksThatWaitGiveTheSameBits) {
  for (const auto& [H, Hk, length, D, causal] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t, bool>>{
           {2, 2, 4000, 64, false}, {4, 2, 1500, 128, true}, {3, 1, 3000, 16, true}}) {
    SCOPED_TRACE(::testing::Message() << "H " << H << " D " << D << " causal " << causal);
    for (const bool tf32 : {false, true}) {
      LargeAttention<float> run(tensor_cores(kLargeTiles), H, Hk, length, D, causal);
      run.s.tf32 = tf32;
      const std::vector<float> first = run.backward();
      for (int repeat = 0; repeat < 5; ++repeat) expect_same_bits(run.backward(), first);
      if (HasFatalFailure()) return;
      if (tf32) continue;
      run.kernels = cuda_cores();
      const std::vector<double> expected = widen(run.backward());
      EXPECT_LE(distance(widen(first), expected), 1e-5 * norm(expected));
    }
  }
}

TEST_F(AttentionTf32Gpu, RefusesOtherShapes) {
  Fixture f({1, 4, 4, 2, 1, 32, true}, false);
  f.s.scale = 0.0;
  EXPECT_NE(gpu::tf32_attention_refusal(f.s), nullptr);
  EXPECT_THROW(f.forward(), Error);
  EXPECT_THROW(f.backward(), Error);
  f.s.scale = 1.0;
  EXPECT_EQ(gpu::tf32_attention_refusal(f.s), nullptr);
  f.s.D = 12;
  EXPECT_THROW(f.forward(), Error);
  f.s.D = 136;
  EXPECT_NE(gpu::tf32_attention_refusal(f.s), nullptr);
  EXPECT_THROW(f.forward(), Error);
}

}  // namespace
}  // namespace quern::test
