// The kernels of decoding on the GPU against their plain twins on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gpu/compare.h"
#include "kernels/decode_attention.h"
#include "kernels/decode_linear.h"
#include "kernels/sample.h"

namespace quern::test {
namespace {

using kernels::DecodeAttention;
using kernels::DecodeLinear;
using kernels::DecodeOutput;
using kernels::DecodeRow;
using kernels::SampleOptions;
using kernels::cuda::Stream;

// |actual - expected| / |expected|, both as one vector.
template <class T>
double relative_error(const std::vector<T>& actual, const std::vector<T>& expected) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<float>(expected[i]);
    difference += std::pow(static_cast<float>(actual[i]) - e, 2);
    norm += e * e;
  }
  return std::sqrt(difference / norm);
}

// Sums in another order: FP32 to some roundings. BF16: an element whose sum is near a tie may round
// to the other neighbour, 2^-8 away, several times in a row of kernels. As a norm over many
// elements that is well below 2^-8.
template <class T>
constexpr double kBound = sizeof(T) == 4 ? 2e-6 : 0x1p-8;

class DecodeLinearGpu : public GpuTest {};

struct LinearCase {
  int64_t rows, in, out;
  DecodeOutput output;
  bool norm = false, bias = false, fp32_stream = false;
  int64_t shift = 0;  // elements of misalignment
};

template <class T>
struct LinearData {
  explicit LinearData(const LinearCase& c)
      : width(c.output == DecodeOutput::swiglu ? c.out / 2 : c.out),
        w(random_values<T>(c.out * c.in, 1, -0.2, 0.2)),
        x(random_values<T>(c.rows * c.in, 2)),
        bias(random_values<T>(c.out, 3)),
        norm(random_values<float>(c.in, 4, 0.5, 1.5)) {
    const int64_t count = c.rows * (c.output == DecodeOutput::add ? c.out : c.in);
    stream = random_values<T>(count, 5);
    stream32 = random_values<float>(count, 6);
  }
  int64_t width;
  std::vector<T> w, x, bias, stream;
  std::vector<float> norm, stream32;
};

// The kernel's arguments for the case, with its arrays at these addresses.
template <class T>
DecodeLinear<T> describe(const LinearCase& c, const T* w, const T* x, const T* bias,
                         const float* norm, void* stream, T* y) {
  DecodeLinear<T> l{c.rows, c.in, c.out, w, c.norm ? nullptr : x};
  l.norm = norm;
  l.eps = 1e-5;
  l.bias = c.bias ? bias : nullptr;
  l.stream = stream;
  l.fp32_stream = c.fp32_stream;
  l.output = c.output;
  l.y = y;
  return l;
}

template <class T>
void check_linear(const LinearCase& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " x " << c.in << " -> " << c.out << ", output "
                                  << static_cast<int>(c.output) << (c.norm ? ", norm" : "")
                                  << (c.bias ? ", bias" : "") << (c.fp32_stream ? ", fp32" : "")
                                  << ", shift " << c.shift << ", " << dtype_of<T>);
  const LinearData<T> data(c);
  std::vector<T> stream = data.stream, y(static_cast<size_t>(c.rows * data.width));
  std::vector<float> stream32 = data.stream32;
  void* const host_stream =
      c.fp32_stream ? static_cast<void*>(stream32.data()) : static_cast<void*>(stream.data());
  kernels::cpu::decode_linear(describe(c, data.w.data(), data.x.data(), data.bias.data(),
                                       data.norm.data(), host_stream, y.data()),
                              {});

  DeviceBuffer<T> w(data.w, c.shift), x(data.x, c.shift), bias(data.bias), out(c.rows * data.width);
  DeviceBuffer<T> device_stream(data.stream, c.shift);
  DeviceBuffer<float> norm(data.norm), device_stream32(data.stream32, c.shift);
  void* const any_stream = c.fp32_stream ? static_cast<void*>(device_stream32.get())
                                         : static_cast<void*>(device_stream.get());
  const DecodeLinear<T> l =
      describe(c, w.get(), x.get(), bias.get(), norm.get(), any_stream, out.get());
  if (c.output != DecodeOutput::add) {
    const std::vector<T> result =
        run_twice(out, [&] { kernels::cuda::decode_linear(l, Stream{}, true); });
    EXPECT_LE(relative_error(result, y), kBound<T>);
    return;
  }
  std::vector<float> sums[2];
  for (auto& sum : sums) {
    device_stream.upload(data.stream);
    device_stream32.upload(data.stream32);
    kernels::cuda::decode_linear(l, Stream{});
    if (c.fp32_stream) {
      sum = device_stream32.download();
    } else {
      for (const T v : device_stream.download()) sum.push_back(static_cast<float>(v));
    }
  }
  device_stream.expect_guards_intact();
  device_stream32.expect_guards_intact();
  std::vector<float> expected = stream32;
  if (!c.fp32_stream) {
    expected.clear();
    for (const T v : stream) expected.push_back(static_cast<float>(v));
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_LE(relative_error(sums[0], expected), kBound<T>);
}

TEST_F(DecodeLinearGpu, MatchesItsTwinInAnyShape) {
  // {in, out}: less than a step and a tile, odd ones that take no 16-byte access, one part and
  // many, several tiles a block
  const int64_t shapes[][2] = {{8, 2},     {5, 6},     {33, 14},   {40, 80},
                               {768, 768}, {3072, 66}, {1025, 34}, {256, 9000}};
  for (const auto& [in, out] : shapes) {
    for (const int64_t rows : {1, 3, 8}) {
      for (const bool norm : {false, true}) {
        check_linear<float>({rows, in, out, DecodeOutput::store, norm, norm});
        check_linear<bfloat16>({rows, in, out, DecodeOutput::store, norm, norm});
        check_linear<float>({rows, in, out, DecodeOutput::swiglu, norm});
        check_linear<bfloat16>({rows, in, out, DecodeOutput::swiglu, norm});
      }
      check_linear<float>({rows, in, out, DecodeOutput::add});
      check_linear<bfloat16>({rows, in, out, DecodeOutput::add});
    }
  }
}

// With the kernel's static memory, more than a block has without opting in.
TEST_F(DecodeLinearGpu, RowsThatTakeNearly48KiB) {
  check_linear<bfloat16>({1, 24320, 16, DecodeOutput::store});
  check_linear<bfloat16>({3, 4864, 16, DecodeOutput::store, true, true});
  check_linear<float>({1, 12160, 16, DecodeOutput::store});
  check_linear<float>({4, 2432, 16, DecodeOutput::store, true, true});
}

TEST_F(DecodeLinearGpu, KeepsTheStreamInFp32AndTakesUnalignedRows) {
  for (const int64_t in : {64, 100}) {
    check_linear<bfloat16>({2, in, 40, DecodeOutput::add, false, false, true});
    check_linear<bfloat16>({2, in, 40, DecodeOutput::store, true, false, true});
    for (const bool norm : {false, true}) {
      check_linear<bfloat16>({2, in, 40, DecodeOutput::store, norm, true, false, 1});
      check_linear<float>({2, in, 40, DecodeOutput::store, norm, true, false, 1});
    }
  }
}

template <class T>
void check_rows_alone(int64_t in, int64_t out) {
  const LinearCase all{19, in, out, DecodeOutput::swiglu, true};  // more than one launch takes
  const LinearData<T> data(all);
  DeviceBuffer<T> w(data.w), x(data.x), bias(data.bias), stream(data.stream);
  DeviceBuffer<T> together(19 * data.width), alone(data.width);
  DeviceBuffer<float> norm(data.norm);
  kernels::cuda::decode_linear(describe(all, w.get(), x.get(), bias.get(), norm.get(),
                                        static_cast<void*>(stream.get()), together.get()),
                               Stream{});
  const std::vector<T> result = together.download();
  for (int64_t m = 0; m < 19; ++m) {
    const LinearCase one{1, in, out, DecodeOutput::swiglu, true};
    kernels::cuda::decode_linear(describe(one, w.get(), x.get(), bias.get(), norm.get(),
                                          static_cast<void*>(stream.get() + m * in), alone.get()),
                                 Stream{});
    const auto begin = result.begin() + m * data.width;
    expect_same_bits(alone.download(), std::vector<T>(begin, begin + data.width));
  }
}

TEST_F(DecodeLinearGpu, ARowDoesNotDependOnTheOthers) {
  check_rows_alone<float>(520, 48);
  check_rows_alone<bfloat16>(520, 48);
}

class DecodeAttentionGpu : public GpuTest {};

template <class T>
void check_attention(int64_t H, int64_t Hk, int64_t D, bool norms,
                     const std::vector<int32_t>& lengths) {
  SCOPED_TRACE(testing::Message() << H << " heads, " << Hk << " kv heads of " << D << ", "
                                  << lengths.size() << " rows, " << dtype_of<T>);
  const auto B = static_cast<int64_t>(lengths.size());
  const int64_t capacity = *std::max_element(lengths.begin(), lengths.end()) + 2;
  std::vector<DecodeRow> rows(lengths.size());
  for (size_t b = 0; b < rows.size(); ++b) {
    rows[b].length = std::max(lengths[b], 0);
    rows[b].active = lengths[b] >= 0 ? 1 : 0;
  }
  const auto qkv = random_values<T>(B * (H + 2 * Hk) * D, 1);
  std::vector<T> k = random_values<T>(B * capacity * Hk * D, 2),
                 v = random_values<T>(B * capacity * Hk * D, 3);
  const auto angles = random_values<float>(capacity * D / 2, 4, -3.0, 3.0);
  std::vector<float> cos, sin;
  for (const float angle : angles) {
    cos.push_back(std::cos(angle));
    sin.push_back(std::sin(angle));
  }
  const auto q_norm = random_values<float>(D, 5, 0.5, 1.5);
  const auto k_norm = random_values<float>(D, 6, 0.5, 1.5);
  std::vector<T> y(static_cast<size_t>(B * H * D));

  DeviceBuffer<uint8_t> device_rows(B * static_cast<int64_t>(sizeof(DecodeRow)));
  const auto* const bytes = reinterpret_cast<const uint8_t*>(rows.data());
  device_rows.upload({bytes, bytes + device_rows.size()});
  DeviceBuffer<T> device_qkv(qkv), device_k(k), device_v(v), out(B * H * D);
  DeviceBuffer<float> device_cos(cos), device_sin(sin), device_q_norm(q_norm),
      device_k_norm(k_norm);
  const auto describe = [&](const DecodeRow* row, const T* in, T* keys, T* values, const float* c,
                            const float* s, const float* qn, const float* kn, T* result) {
    DecodeAttention<T> a{B, H, Hk, D, capacity, row, in, keys, values, c, s};
    if (norms) {
      a.q_norm = qn;
      a.k_norm = kn;
      a.eps = 1e-6;
    }
    a.y = result;
    return a;
  };
  kernels::cpu::decode_attention(describe(rows.data(), qkv.data(), k.data(), v.data(), cos.data(),
                                          sin.data(), q_norm.data(), k_norm.data(), y.data()),
                                 {});
  const auto device =
      describe(reinterpret_cast<const DecodeRow*>(device_rows.get()), device_qkv.get(),
               device_k.get(), device_v.get(), device_cos.get(), device_sin.get(),
               device_q_norm.get(), device_k_norm.get(), out.get());
  const std::vector<T> result =
      run_twice(out, [&] { kernels::cuda::decode_attention(device, Stream{}, true); });
  EXPECT_LE(relative_error(result, y), kBound<T>);
  EXPECT_LE(relative_error(device_k.download(), k), kBound<T>);  // rotated, maybe normed
  expect_same_bits(device_v.download(), v);
  device_k.expect_guards_intact();
  device_v.expect_guards_intact();
}

TEST_F(DecodeAttentionGpu, MatchesItsTwin) {
  // From one key on: around the blocks of a cluster (8), around a round of their warps, and more.
  const std::vector<int32_t> lengths = {0, 1, 6, 7, 8, 31, 130, -1, 517};
  const int64_t heads[][2] = {{1, 1}, {3, 3}, {4, 2}, {6, 2}, {7, 1}, {12, 1}};
  for (const int64_t D : {8, 64, 80, 128, 256}) {
    for (const auto& [H, Hk] : heads) {
      if (D != 64 && H != 3 && H != 7) continue;
      check_attention<float>(H, Hk, D, D != 80, lengths);
      check_attention<bfloat16>(H, Hk, D, D != 80, lengths);
    }
  }
}

class SampleGpu : public GpuTest {};

template <class T>
void check_sample(int64_t V, const SampleOptions& options, double spread, int draws = 4) {
  SCOPED_TRACE(testing::Message() << V << " tokens, temperature " << options.temperature
                                  << ", top_k " << options.top_k << ", top_p " << options.top_p
                                  << ", min_p " << options.min_p << ", penalty "
                                  << options.repetition_penalty << ", spread " << spread << ", "
                                  << dtype_of<T>);
  constexpr int64_t B = 3;
  const int64_t words = (V + 31) / 32;
  auto logits = random_values<T>(B * V, 7, -spread, spread);
  std::vector<DecodeRow> rows(B);
  for (size_t b = 0; b < rows.size(); ++b) {
    rows[b].options = options;
    rows[b].options.seed = 5 + b;
    rows[b].active = b != 1;
    rows[b].drawn = 10 * b;
  }
  std::vector<uint32_t> seen(static_cast<size_t>(B * words));
  for (size_t i = 0; i < seen.size(); ++i) seen[i] = 0x9E3779B9u * static_cast<uint32_t>(i);
  std::vector<int32_t> tokens(B), results(B * kernels::kResultSlots, -5);

  DeviceBuffer<uint8_t> device_rows(B * static_cast<int64_t>(sizeof(DecodeRow)));
  const auto* const bytes = reinterpret_cast<const uint8_t*>(rows.data());
  device_rows.upload({bytes, bytes + device_rows.size()});
  DeviceBuffer<T> device_logits(logits);
  DeviceBuffer<uint32_t> device_seen(seen);
  DeviceBuffer<int32_t> device_tokens(B), device_results(results);
  for (int i = 0; i < draws; ++i) {
    kernels::cpu::sample(tokens.data(), results.data(), rows.data(), seen.data(), logits.data(), B,
                         V, {});
    kernels::cuda::sample(device_tokens.get(), device_results.get(),
                          reinterpret_cast<DecodeRow*>(device_rows.get()), device_seen.get(),
                          device_logits.get(), B, V, Stream{});
    ASSERT_EQ(device_tokens.download(), tokens) << "draw " << i;
  }
  EXPECT_EQ(device_results.download(), results);
  EXPECT_EQ(device_seen.download(), seen);
  const std::vector<uint8_t> state = device_rows.download();
  const auto* const device = reinterpret_cast<const DecodeRow*>(state.data());
  for (size_t b = 0; b < rows.size(); ++b) {
    EXPECT_EQ(device[b].drawn, rows[b].drawn);
    EXPECT_EQ(device[b].posted, rows[b].posted);
    EXPECT_EQ(device[b].length, rows[b].length);
  }
  device_rows.expect_guards_intact();
  device_seen.expect_guards_intact();
  device_tokens.expect_guards_intact();
}

TEST_F(SampleGpu, DrawsTheTwinsTokens) {
  std::vector<SampleOptions> all(9);
  all[0].temperature = 0.0f;
  all[1].temperature = 0.7f;
  all[2].top_k = 5;
  all[3].top_p = 0.9;
  all[4].min_p = 0.05;
  all[5].repetition_penalty = 1.3f;
  all[6] = {0.8f, 40, 0.95, 0.02, 1.1f, 1};
  all[7] = {1.5f, 1, 0.5, 0.0, 1.0f, 1};
  all[8] = {0.0f, 0, 1.0, 0.0, 2.0f, 1};
  for (const int64_t V : {1, 7, 33, 1000, 10001, 70001}) {
    for (const SampleOptions& options : all) {
      check_sample<float>(V, options, 8.0);
      check_sample<bfloat16>(V, options, 8.0);  // many equal logits
      check_sample<bfloat16>(V, options, 0.01, 2);
    }
  }
}

TEST_F(SampleGpu, FindsItsWayAmongEqualLogits) {
  SampleOptions top_k, top_p;
  top_k.top_k = 17;
  top_p.top_p = 0.3;
  for (const SampleOptions& options : {SampleOptions{}, top_k, top_p}) {
    check_sample<float>(1025, options, 0.0, 8);
    check_sample<bfloat16>(50304, options, 0.0, 8);
  }
}

}  // namespace
}  // namespace quern::test
