// Random fills: the CPU's integers and uniforms bit for bit, normals to the last bits of the
// libraries' double logarithm, cosine and error function, rounded to FP32.
#include "kernels/random.h"

#include "gpu/compare.h"

namespace quern::test {
namespace {

using kernels::PhiloxKey;

class RandomGpu : public GpuTest {};

constexpr int64_t kSizes[] = {0, 1, 31, 33, 1025, 1 << 20};
constexpr PhiloxKey kKeys[] = {{1, 0}, {0x123456789abcdefull, 0xfffffff0ull}};

template <class T>
void check_uniform() {
  for (const PhiloxKey key : kKeys) {
    for (const int64_t n : kSizes) {
      std::vector<T> expected(static_cast<size_t>(n));
      kernels::cpu::uniform(expected.data(), n, -0.3, 1.7, key, {});
      DeviceBuffer<T> x(n);
      expect_same_bits(
          run_twice(x, [&] { kernels::cuda::uniform(x.get(), n, -0.3, 1.7, key, {}); }), expected);
    }
  }
}

TEST_F(RandomGpu, Uniform) {
  check_uniform<float>();
  check_uniform<bfloat16>();
}

template <class T>
void check_normal(double truncate) {
  const double neighbour = sizeof(T) == 2 ? 2 * rounding<T>() : 0.0;
  for (const PhiloxKey key : kKeys) {
    for (const int64_t n : kSizes) {
      std::vector<T> expected(static_cast<size_t>(n));
      kernels::cpu::normal(expected.data(), n, 0.5, 2.0, truncate, key, {});
      DeviceBuffer<T> x(n);
      const auto actual =
          run_twice(x, [&] { kernels::cuda::normal(x.get(), n, 0.5, 2.0, truncate, key, {}); });
      // 1e-6 is the project's promise; an FP32 neighbour is 1.2e-7 of the value away.
      expect_close(actual, expected, 2 * 0x1p-24 + neighbour, 1e-9);
    }
  }
}

TEST_F(RandomGpu, Normal) {
  check_normal<float>(0.0);
  check_normal<bfloat16>(0.0);
}
TEST_F(RandomGpu, TruncatedNormal) {
  check_normal<float>(3.0);
  check_normal<bfloat16>(2.0);
}

TEST_F(RandomGpu, Integers) {
  for (const PhiloxKey key : kKeys) {
    for (const int32_t bound : {1, 256, 50257, INT32_MAX}) {
      for (const int64_t n : kSizes) {
        std::vector<int32_t> expected(static_cast<size_t>(n));
        kernels::cpu::random_integers(expected.data(), n, bound, key, {});
        DeviceBuffer<int32_t> x(n);
        expect_same_bits(
            run_twice(x, [&] { kernels::cuda::random_integers(x.get(), n, bound, key, {}); }),
            expected);
      }
    }
  }
}

}  // namespace
}  // namespace quern::test
