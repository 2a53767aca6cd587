// RoPE on the GPU against the CPU in double: packed and strided, any positions, both directions.
#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::RopeLayout;
using kernels::cuda::Stream;

class RopeGpu : public GpuTest {};

enum class Positions { none, shared, per_batch };

struct Case {
  int64_t B, T, H, D;
  int64_t extra;  // elements between tokens beyond H D, as in a q-k-v buffer
  Positions positions;
  int64_t shift;
};

constexpr int64_t kMaxPositions = 1100;

template <class T>
void check(const Case& c, bool inverse) {
  SCOPED_TRACE(::testing::Message() << "B " << c.B << " T " << c.T << " H " << c.H << " D " << c.D
                                    << " extra " << c.extra << " shift " << c.shift);
  const int64_t row = c.H * c.D + c.extra;
  RopeLayout layout{c.B, c.T, c.H, c.D, {c.T * row, row, c.D}, {c.T * row, row, c.D}, 3, false};
  layout.positions_per_batch = c.positions == Positions::per_batch;
  layout.table_rows = kMaxPositions;
  const auto x = random_values<T>(c.B * c.T * row, 1);
  std::vector<int32_t> positions(static_cast<size_t>(c.B * c.T));
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<int32_t>((i * 7 + 5) % kMaxPositions);
  }
  const auto cos = random_values<float>(kMaxPositions * c.D / 2, 2, -1.0, 1.0);
  const auto sin = random_values<float>(kMaxPositions * c.D / 2, 3, -1.0, 1.0);
  const bool given = c.positions != Positions::none;

  std::vector<double> y = widen(x);  // memory between the heads stays
  kernels::cpu::rope<double>(y.data(), widen(x).data(), widen(cos).data(), widen(sin).data(),
                             given ? positions.data() : nullptr, layout, inverse, {});

  DeviceBuffer<T> device_x(x, c.shift), device_y(x, c.shift);
  DeviceBuffer<float> device_cos(cos), device_sin(sin);
  DeviceBuffer<int32_t> device_positions(positions);
  const auto run = [&](T* out, const T* in) {
    kernels::cuda::rope(out, in, device_cos.get(), device_sin.get(),
                        given ? device_positions.get() : nullptr, layout, inverse, Stream{});
  };
  run(device_y.get(), device_x.get());
  const auto first = device_y.download();
  device_y.expect_guards_intact();
  // Two products of up to 2 may cancel: two float roundings, absolute, then the storage's.
  expect_near(first, y, storage_error<T>(), 5e-7);
  run(device_x.get(), device_x.get());  // in place, and the same bits a second time
  expect_same_bits(device_x.download(), first);
}

TEST_F(RopeGpu, AnyLayout) {
  const Case cases[] = {
      {0, 4, 2, 8, 0, Positions::none, 0},          {1, 1, 1, 2, 0, Positions::none, 0},
      {2, 31, 3, 16, 0, Positions::none, 0},        {1, 33, 2, 24, 48, Positions::shared, 0},
      {3, 17, 6, 64, 384, Positions::per_batch, 0}, {3, 17, 6, 64, 384, Positions::per_batch, 1},
      {2, 65, 4, 80, 3, Positions::shared, 0},      {1, 1025, 8, 128, 0, Positions::none, 0},
      {2, 5, 2, 256, 0, Positions::none, 0}};
  for (const Case& c : cases) {
    for (const bool inverse : {false, true}) {
      check<float>(c, inverse);
      check<bfloat16>(c, inverse);
    }
  }
}

// Inputs of a training's size: heads that fill warps and blocks, heads that do not, a single one.
TEST_F(RopeGpu, LargeInputs) {
  const Case cases[] = {{4, 512, 24, 64, 768, Positions::none, 0},
                        {3, 700, 7, 128, 128, Positions::per_batch, 0},
                        {4, 1025, 5, 80, 16, Positions::shared, 0},
                        {8, 1025, 1, 64, 0, Positions::none, 0},
                        {4, 512, 9, 64, 192, Positions::shared, 1}};
  for (const Case& c : cases) {
    for (const bool inverse : {false, true}) {
      check<float>(c, inverse);
      check<bfloat16>(c, inverse);
    }
  }
}

// A sequence alone gives the same bits as among others.
TEST_F(RopeGpu, BatchDoesNotMatter) {
  const int64_t B = 4, T = 512, H = 24, D = 64, sequence = T * H * D;
  RopeLayout layout{B, T, H, D, {sequence, H * D, D}, {sequence, H * D, D}, 0, false};
  const auto x = random_values<bfloat16>(B * sequence, 1);
  DeviceBuffer<bfloat16> device_x(x), all(B * sequence), one(sequence);
  DeviceBuffer<float> cos(random_values<float>(T * D / 2, 2, -1.0, 1.0));
  DeviceBuffer<float> sin(random_values<float>(T * D / 2, 3, -1.0, 1.0));
  kernels::cuda::rope(all.get(), device_x.get(), cos.get(), sin.get(), nullptr, layout, false,
                      Stream{});
  layout.B = 1;
  kernels::cuda::rope(one.get(), device_x.get() + 2 * sequence, cos.get(), sin.get(), nullptr,
                      layout, false, Stream{});
  const auto rotated = all.download();
  expect_same_bits(one.download(), {rotated.begin() + 2 * sequence, rotated.end() - sequence});
  one.expect_guards_intact();
}

// More threads than 32 bits can number are launched in parts. All heads are the same (stride 0), so
// that 2^31 threads need little memory.
void check_parts(int64_t B, int64_t length, Positions kind) {
  const int64_t n = B * length * 2, H = 1 << 15;
  ASSERT_GT(B * length * H, int64_t{1} << 31);
  RopeLayout layout{B, length, 1, 2, {2 * length, 2, 0}, {2 * length, 2, 0}, 1, false};
  layout.positions_per_batch = kind == Positions::per_batch;
  std::vector<int32_t> positions(static_cast<size_t>(B * length));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * 7 % 1009);
  const auto x = random_values<bfloat16>(n, 1);
  const int64_t rows = std::max<int64_t>(length + 1, 1009);
  layout.table_rows = rows;
  const auto cos = random_values<float>(rows, 2, -1.0, 1.0);
  const auto sin = random_values<float>(rows, 3, -1.0, 1.0);
  const bool given = kind != Positions::none;
  std::vector<double> y(static_cast<size_t>(n));
  kernels::cpu::rope<double>(y.data(), widen(x).data(), widen(cos).data(), widen(sin).data(),
                             given ? positions.data() : nullptr, layout, false, {});
  DeviceBuffer<bfloat16> device_x(x), device_y(n);
  DeviceBuffer<float> device_cos(cos), device_sin(sin);
  DeviceBuffer<int32_t> device_positions(positions);
  layout.H = H;
  kernels::cuda::rope(device_y.get(), device_x.get(), device_cos.get(), device_sin.get(),
                      given ? device_positions.get() : nullptr, layout, false, Stream{});
  expect_near(device_y.download(), y, storage_error<bfloat16>(), 5e-7);  // as in check
  device_y.expect_guards_intact();
}

TEST_F(RopeGpu, TooManyThreadsForOneLaunch) {
  constexpr int64_t kMore = (1 << 16) + 3;
  check_parts(kMore, 1, Positions::none);
  check_parts(kMore, 1, Positions::per_batch);
  check_parts(1, kMore, Positions::none);
  check_parts(1, kMore, Positions::shared);
}

// From (B, H, T, D) to (B, T, H, D), over poison.
template <class T>
void check_transposing(int64_t B, int64_t length, int64_t H, int64_t D) {
  const int64_t sequence = length * H * D, n = B * sequence;
  const RopeLayout layout{B, length, H, D, {sequence, D, length * D}, {sequence, H * D, D},
                          0, false};
  const auto x = random_values<T>(n, 1);
  const auto cos = random_values<float>(length * D / 2, 2, -1.0, 1.0);
  const auto sin = random_values<float>(length * D / 2, 3, -1.0, 1.0);
  std::vector<double> y(static_cast<size_t>(n));
  kernels::cpu::rope<double>(y.data(), widen(x).data(), widen(cos).data(), widen(sin).data(),
                             nullptr, layout, false, {});
  DeviceBuffer<T> device_x(x), device_y(n);
  DeviceBuffer<float> device_cos(cos), device_sin(sin);
  const auto actual = run_twice(device_y, [&] {
    kernels::cuda::rope(device_y.get(), device_x.get(), device_cos.get(), device_sin.get(), nullptr,
                        layout, false, Stream{});
  });
  expect_near(actual, y, storage_error<T>(), 5e-7);  // as in check
}

TEST_F(RopeGpu, PositionsBeyondTheTableGiveNaN) {
  const int64_t D = 8;
  const RopeLayout layout{1, 4, 1, D, {4 * D, D, D}, {4 * D, D, D}, 0, false, 2};
  DeviceBuffer<float> table(std::vector<float>(static_cast<size_t>(D), 1.0f));  // two rows
  DeviceBuffer<float> x(random_values<float>(4 * D, 1)), y(4 * D);
  DeviceBuffer<int32_t> positions(std::vector<int32_t>{1, 2, -1, 0});
  kernels::cuda::rope(y.get(), x.get(), table.get(), table.get(), positions.get(), layout, false,
                      Stream{});
  const auto out = y.download();
  for (int64_t i = 0; i < 4 * D; ++i) {
    EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), i / D == 1 || i / D == 2) << i;
  }
}

TEST_F(RopeGpu, OtherStridesOfTheOutput) {
  for (const int64_t length : {3, 1025}) {
    check_transposing<float>(3, length, 6, 64);
    check_transposing<bfloat16>(3, length, 6, 64);
  }
}

TEST_F(RopeGpu, Table) {
  using kernels::RopeScalingKind;
  const kernels::RopeScaling none, linear{RopeScalingKind::linear, 4.0},
      llama3{RopeScalingKind::llama3, 8.0, 1.0, 4.0, 512};
  for (const auto& [D, scaling] : {std::pair<int64_t, kernels::RopeScaling>{2, none},
                                   {16, none},
                                   {80, none},
                                   {128, none},
                                   {80, linear},
                                   {80, llama3},
                                   {128, llama3}}) {
    const int64_t positions = 2049, n = positions * D / 2;
    std::vector<double> cos(static_cast<size_t>(n)), sin(static_cast<size_t>(n));
    kernels::cpu::rope_table<double>(cos.data(), sin.data(), positions, D, 1e4, scaling, {});
    DeviceBuffer<float> device_cos(n), device_sin(n);
    const auto actual = run_twice(device_cos, [&] {
      kernels::cuda::rope_table<float>(device_cos.get(), device_sin.get(), positions, D, 1e4,
                                       scaling, Stream{});
    });
    // Angles in double, at most 2049, so wrong by 1e-12; then one rounding to float.
    expect_near(actual, cos, rounding<float>(), 1e-11);
    expect_near(device_sin.download(), sin, rounding<float>(), 1e-11);
    device_sin.expect_guards_intact();
  }
}

}  // namespace
}  // namespace quern::test
