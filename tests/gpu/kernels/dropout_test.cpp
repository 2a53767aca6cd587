// Dropout: the CPU's masks bit for bit.
#include "kernels/dropout.h"

#include "gpu/compare.h"

namespace quern::test {
namespace {

using kernels::DropoutDraw;

class DropoutGpu : public GpuTest {};

template <class T>
void check(int64_t n, int64_t shift, double p, DropoutDraw draw) {
  SCOPED_TRACE(::testing::Message() << n << " elements, shift " << shift << ", p " << p);
  const auto x = random_values<T>(n, 1);
  std::vector<T> expected(x.size());
  kernels::cpu::dropout(expected.data(), x.data(), n, p, 3, &draw, {});
  DeviceBuffer<T> device_x(x, shift), device_y(n, shift);
  DeviceBuffer<DropoutDraw> device_draw(std::vector<DropoutDraw>{draw});
  const auto run = [&](T* y) {
    kernels::cuda::dropout(y, device_x.get(), n, p, 3, device_draw.get(), {});
  };
  expect_same_bits(run_twice(device_y, [&] { run(device_y.get()); }), expected);
  run(device_x.get());  // in place
  expect_same_bits(device_x.download(), expected);
  device_x.expect_guards_intact();
}

TEST_F(DropoutGpu, TheCpusMasks) {
  for (const int64_t n : {0, 1, 7, 8, 31, 33, 1024, 1025, 1032, 100004, 1 << 20, 3 << 21}) {
    for (const int64_t shift : {0, 1}) {
      for (const DropoutDraw draw :
           {DropoutDraw{1, 0}, DropoutDraw{0x123456789abcdef, (1u << 30) + 1}}) {
        check<float>(n, shift, 0.2, draw);
        check<bfloat16>(n, shift, 0.9, draw);
      }
    }
  }
}

TEST_F(DropoutGpu, DrawsAreCounted) {
  DeviceBuffer<DropoutDraw> state(std::vector<DropoutDraw>{{4, 7}}), draw(1);
  for (const uint64_t number : {7, 8}) {
    kernels::cuda::next_draw(draw.get(), state.get(), {});
    EXPECT_EQ(draw.download()[0].number, number);
    EXPECT_EQ(draw.download()[0].seed, 4u);
  }
}

}  // namespace
}  // namespace quern::test
