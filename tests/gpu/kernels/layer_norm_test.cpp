// LayerNorm on the GPU against the CPU in double. Rows in 16-byte vectors for a warp and for a
// block, with each number of vectors a thread. Rows that are misaligned, odd, or exceed a block's
// registers. In the backward, blocks that walk down several batches of rows.
#include "kernels/layer_norm.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

constexpr double kEps = 1e-5;
constexpr int64_t kSizes[][2] = {{0, 8},      {1, 1},      {1, 8},     {1, 31},     {33, 33},
                                 {1000, 100}, {31, 1024},  {5, 1025},  {1025, 384}, {1025, 768},
                                 {300, 1280}, {3, 1032},   {9, 1600},  {600, 2560}, {6001, 8},
                                 {7, 4096},   {300, 4104}, {2, 8192},  {2, 8200},   {3, 9001},
                                 {140, 8192}, {20, 8200},  {3, 16392}, {2, 32768},  {2, 32776}};
// Tolerance of a mean of up to 32776 terms in float: a chain of up to 160 per thread and a tree
// over the threads. Their roundings of 6e-8 mostly cancel.
constexpr double kFloat = 4e-6;

class LayerNormGpu : public GpuTest {};

// The CPU's result for sum = x + branch in double, from the sum as rounded to TX.
template <class TX, class TY>
struct Reference {
  std::vector<TX> x, dsum, sum;
  std::vector<TY> branch, dy;
  std::vector<float> w, b, mean, rstd;
  std::vector<double> y, wide_mean, wide_rstd, dx, dw, db;

  Reference(int64_t rows, int64_t C, bool residual)
      : x(random_values<TX>(rows * C, 1, -1.0, 3.0)),
        dsum(random_values<TX>(rows * C, 6)),
        sum(x),
        branch(random_values<TY>(rows * C, 7)),
        dy(random_values<TY>(rows * C, 2)),
        w(random_values<float>(C, 3)),
        b(random_values<float>(C, 4)),
        y(x.size()),
        wide_mean(static_cast<size_t>(rows)),
        wide_rstd(static_cast<size_t>(rows)),
        dx(x.size()),
        dw(w.size()),
        db(w.size()) {
    for (size_t i = 0; residual && i < x.size(); ++i) {
      sum[i] = static_cast<TX>(static_cast<float>(x[i]) + static_cast<float>(branch[i]));
    }
    const std::vector<double> wide = widen(sum), wide_dsum = widen(dsum);
    kernels::cpu::add_layer_norm_forward<double, double>(
        nullptr, y.data(), wide_mean.data(), wide_rstd.data(), wide.data(), nullptr,
        widen(w).data(), widen(b).data(), rows, C, kEps, {});
    mean.assign(wide_mean.begin(), wide_mean.end());
    rstd.assign(wide_rstd.begin(), wide_rstd.end());
    std::vector<std::byte> scratch(
        static_cast<size_t>(kernels::cpu::layer_norm_backward_scratch(rows, C, {})));
    kernels::cpu::layer_norm_backward<double, double>(
        dx.data(), dw.data(), db.data(), widen(dy).data(), residual ? wide_dsum.data() : nullptr,
        wide.data(), widen(w).data(), widen(mean).data(), widen(rstd).data(), rows, C, false, false,
        scratch.data(), {});
  }
};

// residual: with the add before the norm, and with the residual path's gradient.
template <class TX, class TY>
void check(int64_t rows, int64_t C, int64_t shift, bool residual) {
  SCOPED_TRACE(::testing::Message()
               << rows << " x " << C << ", shift " << shift << ", residual " << residual);
  const Reference<TX, TY> ref(rows, C, residual);
  DeviceBuffer<TX> x(ref.x, shift), sum(rows * C, shift), dsum(ref.dsum, shift);
  DeviceBuffer<TX> dx(rows * C, shift);
  DeviceBuffer<TY> branch(ref.branch, shift), y(rows * C, shift), dy(ref.dy, shift);
  DeviceBuffer<float> w(ref.w, shift), b(ref.b, shift), mean(rows), rstd(rows), dw(C), db(C);
  const auto run_forward = [&](TX* target) {
    kernels::cuda::add_layer_norm_forward(target, y.get(), mean.get(), rstd.get(), x.get(),
                                          residual ? branch.get() : nullptr, w.get(), b.get(), rows,
                                          C, kEps, Stream{});
  };
  const auto forward = run_twice(y, [&] { run_forward(residual ? sum.get() : nullptr); });
  // Values up to 4 standard deviations, times w up to 2, plus b: absolute where b cancels.
  expect_near(forward, ref.y, storage_error<TY>() + kFloat, 2 * kFloat);
  expect_near(mean.download(), ref.wide_mean, kFloat, kFloat);
  expect_near(rstd.download(), ref.wide_rstd, kFloat, 0.0);
  if (residual) {
    expect_same_bits(sum.download(), ref.sum);
    run_forward(x.get());  // in place
    expect_same_bits(y.download(), forward);
  }
  expect_same_bits(x.download(), ref.sum);
  mean.expect_guards_intact();
  rstd.expect_guards_intact();

  mean.upload(ref.mean);
  rstd.upload(ref.rstd);
  DeviceBuffer<uint8_t> scratch(kernels::cuda::layer_norm_backward_scratch(rows, C, Stream{}));
  const auto run = [&](TX* target, float* dw_target, float* db_target, bool add) {
    kernels::cuda::layer_norm_backward(
        target, dw_target, db_target, dy.get(), residual ? dsum.get() : nullptr, x.get(), w.get(),
        mean.get(), rstd.get(), rows, C, add, add, scratch.get(), Stream{});
  };
  const auto backward = run_twice(dx, [&] { run(dx.get(), nullptr, nullptr, false); });
  // Three terms of up to about 5 cancel: the error is absolute.
  expect_near(backward, ref.dx, storage_error<TX>() + kFloat, 10 * kFloat);
  const auto actual_dw = run_twice(dw, [&] { run(dx.get(), dw.get(), db.get(), false); });
  const auto actual_db = db.download();
  expect_same_bits(dx.download(), backward);
  // `rows` terms of up to 8: each addition rounds a partial sum of a few hundred at most.
  const double sum_error = 2e-6 * static_cast<double>(rows) + kFloat;
  expect_near(actual_dw, ref.dw, kFloat, sum_error);
  expect_near(actual_db, ref.db, kFloat, sum_error);
  db.expect_guards_intact();
  dx.expect_guards_intact();
  scratch.expect_guards_intact();

  const auto before = random_values<float>(C, 5);
  dw.upload(before);
  db.upload(before);
  run(residual ? dsum.get() : dx.get(), dw.get(), db.get(), true);
  auto expected_dw = before, expected_db = before;  // one addition: the same rounding
  for (size_t i = 0; i < before.size(); ++i) {
    expected_dw[i] += actual_dw[i];
    expected_db[i] += actual_db[i];
  }
  expect_same_bits(dw.download(), expected_dw);
  expect_same_bits(db.download(), expected_db);
  if (residual) expect_same_bits(dsum.download(), backward);
}

TEST_F(LayerNormGpu, MatchesDouble) {
  for (const auto& [rows, C] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      for (const bool residual : {false, true}) {
        check<float, float>(rows, C, shift, residual);
        check<bfloat16, bfloat16>(rows, C, shift, residual);
        check<float, bfloat16>(rows, C, shift, residual);
      }
    }
  }
}

// Blocks of the backward take several times the rows that fit their shared memory.
TEST_F(LayerNormGpu, ManyRowsABlock) {
  constexpr int64_t kLong[][2] = {
      {20000, 64}, {2000, 2568}, {1300, 4104}, {1100, 8200}, {600, 16384}};
  for (const auto& [rows, C] : kLong) {
    check<float, float>(rows, C, 0, true);
    check<bfloat16, bfloat16>(rows, C, 0, true);
    check<float, bfloat16>(rows, C, 0, false);
  }
}

// E[x^2] - E[x]^2 would lose every digit here.
TEST_F(LayerNormGpu, LargeMean) {
  const int64_t C = 384;
  auto x = random_values<float>(C, 1);
  for (float& v : x) v += 4096.0f;
  const std::vector<float> one(static_cast<size_t>(C), 1.0f), zero(static_cast<size_t>(C), 0.0f);
  std::vector<double> y(x.size()), mean(1), rstd(1);
  kernels::cpu::add_layer_norm_forward<double, double>(nullptr, y.data(), mean.data(), rstd.data(),
                                                       widen(x).data(), nullptr, widen(one).data(),
                                                       widen(zero).data(), 1, C, kEps, {});
  DeviceBuffer<float> device_x(x), w(one), b(zero), device_y(C), device_mean(1), device_rstd(1);
  kernels::cuda::add_layer_norm_forward<float, float>(nullptr, device_y.get(), device_mean.get(),
                                                      device_rstd.get(), device_x.get(), nullptr,
                                                      w.get(), b.get(), 1, C, kEps, Stream{});
  // The mean is one rounding of about 4096 off, a few 2^-12, over a deviation of 1.15.
  expect_near(device_y.download(), y, 0.0, 2e-3);
}

}  // namespace
}  // namespace quern::test
