// RMSNorm on the GPU against the CPU in double. Rows in 16-byte vectors for a warp and for a block,
// with each number of vectors a thread. Rows that are misaligned, odd, or exceed a block's
// registers. In the backward, blocks that walk down several batches of rows.
#include "kernels/rms_norm.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

constexpr double kEps = 1e-5;
constexpr int64_t kSizes[][2] = {
    {0, 8},      {0, 768},    {1, 1},      {1, 8},      {1, 31},     {33, 33},    {7, 100},
    {1000, 100}, {31, 1024},  {5, 1025},   {1025, 384}, {7, 768},    {1025, 768}, {2051, 1288},
    {7, 1000},   {3, 1032},   {5, 1280},   {9, 1536},   {9, 2048},   {1, 2560},   {7, 2560},
    {600, 2560}, {6001, 8},   {300, 2568}, {7, 4096},   {300, 4096}, {2, 8192},   {2, 8200},
    {3, 9001},   {140, 6000}, {140, 9000}, {300, 4104}, {7, 12288},  {2, 12296},  {3, 16392},
    {2, 32768},  {2, 32776}};
// A mean of up to 32776 terms in float: each thread's chain of up to 160 and a tree over the
// threads, whose roundings of 6e-8 mostly cancel.
constexpr double kFloat = 4e-6;

class RmsNormGpu : public GpuTest {};

template <class TX, class TY>
void check_forward(int64_t rows, int64_t C, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << C << ", shift " << shift);
  const auto x = random_values<TX>(rows * C, 1);
  const auto w = random_values<float>(C, 2);
  std::vector<double> y(x.size()), rstd(static_cast<size_t>(rows));
  kernels::cpu::add_rms_norm_forward<double, double>(
      nullptr, y.data(), rstd.data(), widen(x).data(), nullptr, widen(w).data(), rows, C, kEps, {});
  DeviceBuffer<TX> device_x(x, shift);
  DeviceBuffer<float> device_w(w, shift), device_rstd(rows);
  DeviceBuffer<TY> device_y(rows * C, shift);
  const auto actual = run_twice(device_y, [&] {
    kernels::cuda::add_rms_norm_forward<TX, TY>(nullptr, device_y.get(), device_rstd.get(),
                                                device_x.get(), nullptr, device_w.get(), rows, C,
                                                kEps, Stream{});
  });
  expect_near(actual, y, storage_error<TY>() + kFloat, 0.0);
  expect_near(device_rstd.download(), rstd, kFloat, 0.0);
  device_rstd.expect_guards_intact();
}

template <class TX, class TY>
void check_add_forward(int64_t rows, int64_t C, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << C << ", shift " << shift);
  const auto a = random_values<TX>(rows * C, 1);
  const auto b = random_values<TY>(rows * C, 2);
  const auto w = random_values<float>(C, 3);
  std::vector<TX> sum(a.size());  // one float addition, one rounding: the same bits everywhere
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = static_cast<TX>(static_cast<float>(a[i]) + static_cast<float>(b[i]));
  }
  std::vector<double> y(a.size()), rstd(static_cast<size_t>(rows));
  kernels::cpu::add_rms_norm_forward<double, double>(nullptr, y.data(), rstd.data(),
                                                     widen(sum).data(), nullptr, widen(w).data(),
                                                     rows, C, kEps, {});
  DeviceBuffer<TX> device_a(a, shift), device_sum(rows * C, shift);
  DeviceBuffer<TY> device_b(b, shift), device_y(rows * C, shift);
  DeviceBuffer<float> device_w(w, shift), device_rstd(rows);
  const auto run = [&](TX* target) {
    kernels::cuda::add_rms_norm_forward(target, device_y.get(), device_rstd.get(), device_a.get(),
                                        device_b.get(), device_w.get(), rows, C, kEps, Stream{});
  };
  const auto actual = run_twice(device_y, [&] { run(device_sum.get()); });
  expect_near(actual, y, storage_error<TY>() + kFloat, 0.0);
  expect_near(device_rstd.download(), rstd, kFloat, 0.0);
  expect_same_bits(device_sum.download(), sum);
  device_sum.expect_guards_intact();
  device_y.poison();
  run(device_a.get());  // in place
  expect_same_bits(device_a.download(), sum);
  expect_same_bits(device_y.download(), actual);
}

template <class TX, class TY>
void check_backward(int64_t rows, int64_t C, int64_t shift, bool residual) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << C << ", shift " << shift);
  const auto x = random_values<TX>(rows * C, 1);
  const auto dy = random_values<TY>(rows * C, 2);
  const auto dsum = random_values<TX>(rows * C, 3);
  const auto w = random_values<float>(C, 4);
  const auto before = random_values<float>(C, 5);
  std::vector<double> y(x.size()), wide_rstd(static_cast<size_t>(rows));
  kernels::cpu::add_rms_norm_forward<double, double>(nullptr, y.data(), wide_rstd.data(),
                                                     widen(x).data(), nullptr, widen(w).data(),
                                                     rows, C, kEps, {});
  const std::vector<float> rstd(wide_rstd.begin(), wide_rstd.end());

  std::vector<double> dx(x.size()), dw(w.size());
  std::vector<std::byte> cpu_scratch(
      static_cast<size_t>(kernels::cpu::rms_norm_backward_scratch(rows, C, {})));
  const auto wide_dsum = widen(dsum);
  kernels::cpu::rms_norm_backward<double, double>(
      dx.data(), dw.data(), widen(dy).data(), residual ? wide_dsum.data() : nullptr,
      widen(x).data(), widen(w).data(), widen(rstd).data(), rows, C, false, cpu_scratch.data(), {});

  DeviceBuffer<TX> device_x(x, shift), device_dsum(dsum, shift), device_dx(rows * C, shift);
  DeviceBuffer<TY> device_dy(dy, shift);
  DeviceBuffer<float> device_w(w, shift), device_rstd(rstd), device_dw(C);
  DeviceBuffer<uint8_t> scratch(kernels::cuda::rms_norm_backward_scratch(rows, C, Stream{}));
  const auto run = [&](TX* target, float* dw_target, bool add) {
    kernels::cuda::rms_norm_backward<TX, TY>(
        target, dw_target, device_dy.get(), residual ? device_dsum.get() : nullptr, device_x.get(),
        device_w.get(), device_rstd.get(), rows, C, add, scratch.get(), Stream{});
  };
  const auto actual = run_twice(device_dx, [&] { run(device_dx.get(), nullptr, false); });
  // w dy and z mean(w dy z), up to about 5 each, cancel: the error is absolute.
  expect_near(actual, dx, storage_error<TX>() + kFloat, 10 * kFloat);
  const auto actual_dw =
      run_twice(device_dw, [&] { run(device_dx.get(), device_dw.get(), false); });
  device_dx.expect_guards_intact();
  expect_same_bits(device_dx.download(), actual);
  // `rows` terms of up to 4: each addition rounds a partial sum of a few hundred at most.
  const double sum_error = 1e-6 * static_cast<double>(rows);
  expect_near(actual_dw, dw, kFloat, sum_error + kFloat);
  scratch.expect_guards_intact();

  device_dw.upload(before);
  run(device_dx.get(), device_dw.get(), true);
  auto added = before;
  for (size_t i = 0; i < added.size(); ++i) added[i] += actual_dw[i];  // one rounding, the same
  expect_same_bits(device_dw.download(), added);
  if (!residual) return;
  run(device_dsum.get(), nullptr, false);  // in place
  expect_same_bits(device_dsum.download(), actual);
}

TEST_F(RmsNormGpu, Forward) {
  for (const auto& [rows, C] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      check_forward<float, float>(rows, C, shift);
      check_forward<bfloat16, bfloat16>(rows, C, shift);
      check_forward<float, bfloat16>(rows, C, shift);
    }
  }
}

TEST_F(RmsNormGpu, AddForward) {
  for (const auto& [rows, C] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      check_add_forward<float, float>(rows, C, shift);
      check_add_forward<bfloat16, bfloat16>(rows, C, shift);
      check_add_forward<float, bfloat16>(rows, C, shift);
    }
  }
}

TEST_F(RmsNormGpu, Backward) {
  for (const auto& [rows, C] : kSizes) {
    for (const bool residual : {false, true}) {
      check_backward<float, float>(rows, C, 0, residual);
      check_backward<bfloat16, bfloat16>(rows, C, 0, residual);
      check_backward<float, bfloat16>(rows, C, 0, residual);
      check_backward<bfloat16, bfloat16>(rows, C, 1, residual);
      check_backward<float, bfloat16>(rows, C, 1, residual);
    }
  }
}

// Blocks take several times the rows that fit their shared memory.
TEST_F(RmsNormGpu, BackwardOfManyRowsABlock) {
  constexpr int64_t kLong[][2] = {{20000, 64}, {2000, 2568}, {1300, 4104}, {1100, 8200}};
  for (const auto& [rows, C] : kLong) {
    check_backward<float, float>(rows, C, 0, true);
    check_backward<bfloat16, bfloat16>(rows, C, 0, true);
    check_backward<float, bfloat16>(rows, C, 0, false);
  }
}

}  // namespace
}  // namespace quern::test
