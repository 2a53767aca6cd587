// GELU of a product plus bias on the GPU against the CPU in double: whole vectors and single
// elements, more columns than a block takes and fewer, slices with many rows, one and none.
#include "kernels/bias_gelu.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

constexpr int64_t kSizes[][2] = {{0, 8},    {1, 1},     {1, 8},     {3, 31},   {63, 256}, {64, 257},
                                 {65, 264}, {129, 520}, {1000, 96}, {500, 24}, {33, 3072}};
constexpr double kFloat = 4e-6;  // 32 units in the last place, as for the pointwise kernels

class BiasGeluGpu : public GpuTest {};

template <class T>
void check(int64_t rows, int64_t F, int64_t shift, bool biased) {
  SCOPED_TRACE(::testing::Message()
               << rows << " x " << F << ", shift " << shift << ", bias " << biased);
  const auto x_values = random_values<T>(rows * F, 1, -3.0, 3.0);
  const auto b_values = random_values<T>(F, 2);
  const auto dy_values = random_values<T>(rows * F, 3);
  std::vector<double> y(x_values.size()), dx(y.size()), db(static_cast<size_t>(F));
  const auto wide_x = widen(x_values), wide_b = widen(b_values);
  const double* const bias = biased ? wide_b.data() : nullptr;
  kernels::cpu::bias_gelu_forward(y.data(), wide_x.data(), bias, rows, F, {});
  std::vector<std::byte> work(
      static_cast<size_t>(kernels::cpu::bias_gelu_backward_scratch(rows, F, {})));
  kernels::cpu::bias_gelu_backward<double>(dx.data(), nullptr, db.data(), widen(dy_values).data(),
                                           wide_x.data(), bias, rows, F, false, work.data(), {});

  DeviceBuffer<T> device_x(x_values, shift), device_b(b_values, shift), device_y(rows * F, shift);
  DeviceBuffer<T> device_dx(rows * F, shift), dy(dy_values, shift);
  DeviceBuffer<float> device_db(F);
  const T* const device_bias = biased ? device_b.get() : nullptr;
  const auto forward = run_twice(device_y, [&] {
    kernels::cuda::bias_gelu_forward(device_y.get(), device_x.get(), device_bias, rows, F,
                                     Stream{});
  });
  expect_near(forward, y, storage_error<T>() + kFloat, kFloat);
  DeviceBuffer<uint8_t> scratch(kernels::cuda::bias_gelu_backward_scratch(rows, F, Stream{}));
  const auto run = [&](T* dx_target, T* y_target, float* db_target, bool add) {
    dy.upload(dy_values);
    kernels::cuda::bias_gelu_backward<T>(dx_target, y_target, db_target, dy.get(), device_x.get(),
                                         device_bias, rows, F, add, scratch.get(), Stream{});
  };
  const auto without = run_twice(device_dx, [&] { run(device_dx.get(), nullptr, nullptr, false); });
  expect_near(without, dx, storage_error<T>() + kFloat, kFloat);
  const auto actual_db = run_twice(
      device_db, [&] { run(device_dx.get(), dy.get(), device_db.get(), false); });  // y over dy
  expect_near(actual_db, db, kFloat, 1e-6 * static_cast<double>(rows) + kFloat);
  expect_same_bits(dy.download(), forward);
  expect_same_bits(device_dx.download(), without);
  run(dy.get(), nullptr, device_db.get(), false);  // dx over dy
  expect_same_bits(dy.download(), without);
  const auto before = random_values<float>(F, 4);
  device_db.upload(before);
  run(device_dx.get(), device_y.get(), device_db.get(), true);
  expect_same_bits(device_y.download(), forward);
  auto expected = before;  // one addition: the same rounding
  for (size_t c = 0; c < expected.size(); ++c) expected[c] += actual_db[c];
  expect_same_bits(device_db.download(), expected);
  device_dx.expect_guards_intact();
  device_y.expect_guards_intact();
  device_db.expect_guards_intact();
  dy.expect_guards_intact();
  scratch.expect_guards_intact();
}

TEST_F(BiasGeluGpu, MatchesDouble) {
  for (const auto& [rows, F] : kSizes) {
    for (const int64_t shift : {0, 1}) {
      for (const bool biased : {false, true}) {
        check<float>(rows, F, shift, biased);
        check<bfloat16>(rows, F, shift, biased);
      }
    }
  }
}

TEST_F(BiasGeluGpu, LargeAndNotFinite) {
  const std::vector<float> x{-1e30f, -100.0f, -20.0f, 20.0f, 100.0f, 1e30f, NAN, INFINITY};
  DeviceBuffer<float> device_x(x), y(8);
  kernels::cuda::bias_gelu_forward<float>(y.get(), device_x.get(), nullptr, 1, 8, Stream{});
  const auto out = y.download();
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(out[i], 0.0, 1e-30) << x[i];
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(out[i], x[i]);
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(out[7], INFINITY);
}

}  // namespace
}  // namespace quern::test
