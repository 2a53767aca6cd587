// Shared by the tests of the CPU kernels: random inputs, outputs followed by guard elements,
// comparison by norm with a double reference, and runs on one and on several threads.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "kernels/cpu/threads.h"
#include "support/cpu_levels.h"
#include "support/guard_byte.h"

namespace quern::kernel_test {

using testing_support::kGuardByte;

inline constexpr int64_t kSizes[] = {0, 1, 31, 33, 1025};  // empty, single, around a lane group

inline double to_double(double x) {
  return x;
}
inline double to_double(float x) {
  return x;
}
inline double to_double(bfloat16 x) {
  return static_cast<float>(x);
}
inline double to_double(float16 x) {
  return static_cast<float>(x);
}

// The nearest T, via float for the 16-bit floats.
template <class T>
T from_double(double x) {
  return static_cast<T>(static_cast<acc_t<T>>(x));
}

template <class T>
std::vector<T> random_vector(int64_t n, uint32_t seed, double low = -2.0, double high = 2.0) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) value = from_double<T>(uniform(engine));
  return values;
}

template <class T>
std::vector<double> doubles(const std::vector<T>& x) {
  std::vector<double> out;
  for (const T value : x) out.push_back(to_double(value));
  return out;
}

// n elements of garbage, then guards that a kernel must not touch.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(static_cast<size_t>(n)), memory_(n_ + kGuards) {
    std::memset(static_cast<void*>(memory_.data()), kGuardByte, memory_.size() * sizeof(T));
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(static_cast<int64_t>(values.size())) {
    std::copy(values.begin(), values.end(), memory_.begin());
  }

  T* data() { return memory_.data(); }
  // The elements, after a check of the guards.
  std::vector<T> values() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data() + n_);
    for (size_t i = 0; i < kGuards * sizeof(T); ++i) {
      EXPECT_EQ(bytes[i], kGuardByte) << "a kernel wrote past the end, byte " << i;
    }
    return {memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(n_)};
  }

 private:
  static constexpr size_t kGuards = 16;
  size_t n_;
  std::vector<T> memory_;
};

// |actual - expected| / |expected|, both as one vector; the absolute norm if `expected` is 0.
template <class T>
double relative_error(const std::vector<T>& actual, const std::vector<double>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(to_double(actual[i]) - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// Relative error of a kernel with a few roundings: eight units of roundoff in the type of the
// computation. The 16-bit floats add one rounding of the result; double adds the reference's error.
template <class T>
constexpr double tolerance() {
  if constexpr (std::is_same_v<T, double>) return 16 * 0x1p-53;
  if constexpr (std::is_same_v<T, bfloat16>) return 0x1p-8 + 8 * 0x1p-24;
  if constexpr (std::is_same_v<T, float16>) return 0x1p-11 + 8 * 0x1p-24;
  return 8 * 0x1p-24;
}

template <class T>
void expect_near(const std::vector<T>& actual, const std::vector<double>& expected,
                 double bound = tolerance<T>()) {
  EXPECT_LE(relative_error(actual, expected), bound) << "of " << expected.size() << " elements";
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Expects the same bits from run() on one thread and on three.
template <class Run>
void expect_thread_count_does_not_matter(const Run& run) {
  const int before = kernels::cpu::thread_count();
  kernels::cpu::set_thread_count(1);
  const auto one = run();
  kernels::cpu::set_thread_count(3);
  const auto three = run();
  kernels::cpu::set_thread_count(before);
  EXPECT_TRUE(same_bits(one, three));
}

// Calls f(T{}) for the types of the CPU kernels.
template <class F>
void for_float_types(const F& f) {
  testing_support::at_each_cpu_level([&] {
    f(float{});
    f(bfloat16{});
    f(double{});
  });
}

}  // namespace quern::kernel_test
