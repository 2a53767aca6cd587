// LayerNorm on the GPU against the CPU in double: rows for a warp, for a block, and beyond what a
// block keeps in registers; aligned and not.
#include "kernels/layer_norm.h"

#include "reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

constexpr double kEps = 1e-5;
constexpr int64_t kSizes[][2] = {{0, 8},      {1, 31},   {33, 33},  {31, 1024}, {5, 1025},
                                 {1025, 384}, {3, 1032}, {2, 8192}, {2, 8200},  {3, 9001}};
// A mean of up to 9001 terms in float, summed as a tree: a few dozen roundings of 6e-8.
constexpr double kFloat = 4e-6;

class LayerNormGpu : public GpuTest {};

template <class T>
struct Reference {
  std::vector<T> x, dy;
  std::vector<float> w, b, mean, rstd;
  std::vector<double> y, wide_mean, wide_rstd, dx, dw, db;

  Reference(int64_t rows, int64_t C)
      : x(random_values<T>(rows * C, 1, -1.0, 3.0)),
        dy(random_values<T>(rows * C, 2)),
        w(random_values<float>(C, 3)),
        b(random_values<float>(C, 4)),
        y(x.size()),
        wide_mean(static_cast<size_t>(rows)),
        wide_rstd(static_cast<size_t>(rows)),
        dx(x.size()),
        dw(w.size()),
        db(w.size()) {
    kernels::cpu::layer_norm_forward<double>(y.data(), wide_mean.data(), wide_rstd.data(),
                                             widen(x).data(), widen(w).data(), widen(b).data(),
                                             rows, C, kEps, {});
    mean.assign(wide_mean.begin(), wide_mean.end());
    rstd.assign(wide_rstd.begin(), wide_rstd.end());
    std::vector<std::byte> scratch(
        static_cast<size_t>(kernels::cpu::layer_norm_backward_scratch(rows, C, {})));
    kernels::cpu::layer_norm_backward<double>(
        dx.data(), dw.data(), db.data(), widen(dy).data(), widen(x).data(), widen(w).data(),
        widen(mean).data(), widen(rstd).data(), rows, C, false, false, scratch.data(), {});
  }
};

template <class T>
void check(int64_t rows, int64_t C, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << C << ", shift " << shift);
  const Reference<T> ref(rows, C);
  DeviceBuffer<T> x(ref.x, shift), dy(ref.dy, shift), y(rows * C, shift), dx(rows * C, shift);
  DeviceBuffer<float> w(ref.w, shift), b(ref.b, shift), mean(rows), rstd(rows), dw(C), db(C);
  const auto forward = run_twice(y, [&] {
    kernels::cuda::layer_norm_forward(y.get(), mean.get(), rstd.get(), x.get(), w.get(), b.get(),
                                      rows, C, kEps, Stream{});
  });
  // Values up to 4 standard deviations, times w up to 2, plus b: absolute where b cancels.
  expect_near(forward, ref.y, storage_error<T>() + kFloat, 2 * kFloat);
  expect_near(mean.download(), ref.wide_mean, kFloat, kFloat);
  expect_near(rstd.download(), ref.wide_rstd, kFloat, 0.0);

  mean.upload(ref.mean);
  rstd.upload(ref.rstd);
  DeviceBuffer<uint8_t> scratch(kernels::cuda::layer_norm_backward_scratch(rows, C, Stream{}));
  const auto run = [&](float* dw_target, float* db_target, bool add) {
    kernels::cuda::layer_norm_backward(dx.get(), dw_target, db_target, dy.get(), x.get(), w.get(),
                                       mean.get(), rstd.get(), rows, C, add, add, scratch.get(),
                                       Stream{});
  };
  const auto backward = run_twice(dx, [&] { run(nullptr, nullptr, false); });
  // Three terms of up to about 5 cancel: the error is absolute.
  expect_near(backward, ref.dx, storage_error<T>() + kFloat, 10 * kFloat);
  const auto actual_dw = run_twice(dw, [&] { run(dw.get(), db.get(), false); });
  const auto actual_db = db.download();
  // `rows` terms of up to 8: each addition rounds a partial sum of a few hundred at most.
  const double sum_error = 2e-6 * static_cast<double>(rows) + kFloat;
  expect_near(actual_dw, ref.dw, kFloat, sum_error);
  expect_near(actual_db, ref.db, kFloat, sum_error);
  db.expect_guards_intact();
  scratch.expect_guards_intact();

  const auto before = random_values<float>(C, 5);
  dw.upload(before);
  db.upload(before);
  run(dw.get(), db.get(), true);
  auto expected_dw = before, expected_db = before;  // one addition: the same rounding
  for (size_t i = 0; i < before.size(); ++i) {
    expected_dw[i] += actual_dw[i];
    expected_db[i] += actual_db[i];
  }
  expect_same_bits(dw.download(), expected_dw);
  expect_same_bits(db.download(), expected_db);
}

TEST_F(LayerNormGpu, MatchesDouble) {
  for (const auto& [rows, C] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      check<float>(rows, C, shift);
      check<bfloat16>(rows, C, shift);
    }
  }
}

// E[x^2] - E[x]^2 would lose every digit here.
TEST_F(LayerNormGpu, LargeMean) {
  const int64_t C = 384;
  auto x = random_values<float>(C, 1);
  for (float& v : x) v += 4096.0f;
  const std::vector<float> one(static_cast<size_t>(C), 1.0f), zero(static_cast<size_t>(C), 0.0f);
  std::vector<double> y(x.size()), mean(1), rstd(1);
  kernels::cpu::layer_norm_forward<double>(y.data(), mean.data(), rstd.data(), widen(x).data(),
                                           widen(one).data(), widen(zero).data(), 1, C, kEps, {});
  DeviceBuffer<float> device_x(x), w(one), b(zero), device_y(C), device_mean(1), device_rstd(1);
  kernels::cuda::layer_norm_forward(device_y.get(), device_mean.get(), device_rstd.get(),
                                    device_x.get(), w.get(), b.get(), 1, C, kEps, Stream{});
  // The mean is one rounding of about 4096 off, a few 2^-12, over a deviation of 1.15.
  expect_near(device_y.download(), y, 0.0, 2e-3);
}

}  // namespace
}  // namespace quern::test
