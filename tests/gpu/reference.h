// References in double for the tests of CUDA kernels: the CPU's double instance runs on the same
// values as the GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "compare.h"

namespace quern::test {

template <class T>
double widen(T x) {
  return static_cast<double>(static_cast<float>(x));
}

template <class T>
std::vector<double> widen(const std::vector<T>& values) {
  std::vector<double> wide;
  wide.reserve(values.size());
  for (const T v : values) wide.push_back(widen(v));
  return wide;
}

// |actual - expected| <= relative |expected| + absolute, element by element. A non-finite result
// must be expected.
template <class T>
void expect_near(const std::vector<T>& actual, const std::vector<double>& expected, double relative,
                 double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = widen(actual[i]), e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    ASSERT_TRUE(std::isfinite(a) && std::isfinite(e))
        << "element " << i << " of " << actual.size() << ": " << a << ", expected " << e;
    ASSERT_LE(std::abs(a - e), relative * std::abs(e) + absolute)
        << "element " << i << " of " << actual.size() << ": " << a << ", expected " << e;
  }
}

// The relative error of a result computed in float and rounded once to T: half of the last place. A
// float result needs no rounding.
template <class T>
constexpr double storage_error() {
  return sizeof(T) == sizeof(float) ? 0.0 : 1.01 * rounding<T>();
}

}  // namespace quern::test
