// exp, log, tanh, erf, sigmoid, pow and sqrt for the op functors. In double, on the GPU, and for
// pow and sqrt, they are the library's. The others, in float on the CPU, are short branch-free
// polynomials: the compiler vectorises them, while a call would keep the loop scalar. Each states
// its error bound, and the tests measure it over every float (exp, log) or a dense grid.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace quern::kernels::math {

using std::pow, std::sqrt;

QUERN_HD inline double reciprocal(double x) {
  return 1.0 / x;
}

#ifdef __CUDA_ARCH__

using std::erf, std::exp, std::log, std::tanh;

// Within 1 ulp; 0 for results below 2^-126.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

inline double exp(double x) {
  return std::exp(x);
}
inline double log(double x) {
  return std::log(x);
}
inline double tanh(double x) {
  return std::tanh(x);
}
inline double erf(double x) {
  return std::erf(x);
}
inline float reciprocal(float x) {
  return 1.0f / x;
}

namespace detail {
// x = n ln 2 + r with integer n and |r| <= ln(2) / 2. Adding 1.5 2^23 rounds to an integer and
// leaves it in the low mantissa bits; ln 2 is subtracted in two parts, the first exact.
struct Reduced {
  float r;
  int32_t n;
};
inline Reduced reduce_by_ln2(float x) {
  constexpr float kMagic = 12582912.0f;
  const float shifted = x * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  const uint32_t bits = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kMagic);
  return {r, static_cast<int32_t>(bits)};
}

inline float power_of_two(int32_t n) {  // -126 <= n <= 127
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

// (exp(r) - 1) / r - 1 by its Taylor series: |r| <= 0.3466 leaves out less than 6e-9 of exp(r).
inline float exp_tail(float r) {
  float p = 1.98412698e-4f;    // 1 / 7!
  p = p * r + 1.38888889e-3f;  // 1 / 6!
  p = p * r + 8.33333333e-3f;  // 1 / 5!
  p = p * r + 4.16666667e-2f;  // 1 / 4!
  p = p * r + 1.66666667e-1f;  // 1 / 3!
  return (p * r + 0.5f) * r;
}
}  // namespace detail

// Within 1.1 ulp; overflow, underflow, infinities and NaN as std::exp.
inline float exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const auto [r, n] = detail::reduce_by_ln2(x);
  const float p = 1.0f + (r + r * detail::exp_tail(r));
  const int32_t half = n >> 1;  // two factors, so that the whole range down to subnormals works
  return p * detail::power_of_two(half) * detail::power_of_two(n - half);
}

// Within 1 ulp. x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); with s = f / (2 + f),
// log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + R)), R = 2 s^2/3 + 2 s^4/5 + ...
inline float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.0f : x;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled) - 0x3f3504f3u;  // minus sqrt(1/2)
  const float e = static_cast<float>((static_cast<int32_t>(bits) >> 23) - (subnormal ? 23 : 0));
  const float f = std::bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  const float R = z * (0.666666667f + z * (0.4f + z * (0.285714286f + z * 0.222222222f)));
  const float half_square = 0.5f * f * f;
  const float tail = half_square - (s * (half_square + R) + e * 1.42860677e-6f);
  float y = e * 0.693145752f + (f - tail);
  y = x > 3.40282347e38f ? x : y;
  y = x == 0.0f ? -HUGE_VALF : y;
  return x >= 0.0f ? y : NAN;
}

// Within 2.5 ulp: with u = exp(2 |x|) - 1, tanh |x| = u / (u + 2); beyond 10 it rounds to 1.
inline float tanh(float x) {
  float magnitude = std::fabs(x);
  magnitude = magnitude > 10.0f ? 10.0f : magnitude;
  const auto [r, n] = detail::reduce_by_ln2(2.0f * magnitude);
  const float scale = detail::power_of_two(n & 63);  // n is 0..29; the mask is for NaN's bits
  const float u = scale * (r + r * detail::exp_tail(r)) + (scale - 1.0f);
  return std::copysign(u / (u + 2.0f), x);
}

// Within 2.5 ulp. Below 1 an odd polynomial; beyond, 1 - exp(a polynomial fitted to log(erfc)).
// Both are Chebyshev fits, of error 2e-9 and 2e-8.
inline float erf(float x) {
  float a = std::fabs(x);
  a = a > 4.0f ? 4.0f : a;
  const float z = a * a;
  float p = 7.875875063e-5f;
  p = p * z - 8.016864287e-4f;
  p = p * z + 5.189087423e-3f;
  p = p * z - 2.685421201e-2f;
  p = p * z + 1.128359472e-1f;
  p = p * z - 3.761262667e-1f;
  const float small = a * (p * z + 1.128379166f);
  float q = 1.637151415e-6f;
  q = q * a - 4.605804269e-5f;
  q = q * a + 5.968056257e-4f;
  q = q * a - 4.759596293e-3f;
  q = q * a + 2.642113601e-2f;
  q = q * a - 1.100800829e-1f;
  q = q * a - 6.318260516e-1f;
  q = q * a - 1.130233435f;
  q = q * a + 3.201380497e-4f;
  const float large = 1.0f - math::exp(q);
  return std::copysign(a < 1.0f ? small : large, x);
}

#endif

template <class A>
QUERN_HD A sigmoid(A x) {
  return reciprocal(A(1) + exp(-x));
}

}  // namespace quern::kernels::math
