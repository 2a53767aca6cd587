// Random inputs and comparisons for the tests that hold CUDA kernels against the CPU's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "device_buffer.h"

namespace quern::test {

template <class T>
std::vector<T> random_values(int64_t n, uint32_t seed, double low = -2.0, double high = 2.0) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& v : values) v = static_cast<T>(static_cast<float>(uniform(engine)));
  return values;
}

// Half the distance between neighbours at 1: the relative error of one rounding to T.
template <class T>
constexpr double rounding() {
  if constexpr (std::is_same_v<T, float>) {
    return 0x1p-24;
  } else {
    return std::is_same_v<T, bfloat16> ? 0x1p-8 : 0x1p-11;
  }
}

template <class T>
void expect_same_bits(const std::vector<T>& actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << "element " << i << " of " << actual.size() << ": "
        << static_cast<double>(static_cast<float>(actual[i])) << ", expected "
        << static_cast<double>(static_cast<float>(expected[i]));
  }
}

// |actual - expected| <= relative |expected| + absolute, element by element. NaN matches NaN only,
// an infinity itself only.
template <class T>
void expect_close(const std::vector<T>& actual, const std::vector<T>& expected, double relative,
                  double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = static_cast<float>(actual[i]), e = static_cast<float>(expected[i]);
    if (std::isnan(a) && std::isnan(e)) continue;
    if (a == e) continue;
    ASSERT_TRUE(std::isfinite(e)) << "element " << i << ": " << a << ", expected " << e;
    ASSERT_LE(std::abs(a - e), relative * std::abs(e) + absolute)
        << "element " << i << " of " << actual.size() << ": " << a << ", expected " << e;
  }
}

// Runs a kernel that writes `out` twice over poison, checks the guards, expects the same bits, and
// gives the result.
template <class T, class Run>
std::vector<T> run_twice(DeviceBuffer<T>& out, Run run) {
  run();
  const std::vector<T> first = out.download();
  out.expect_guards_intact();
  out.poison();
  run();
  const std::vector<T> second = out.download();
  expect_same_bits(second, first);
  return first;
}

}  // namespace quern::test
