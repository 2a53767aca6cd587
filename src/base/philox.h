// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011). Element `index` of a stream is a pure function of (seed, index), so the order of
// evaluation, the number of threads and the device do not matter. Integers and uniforms have the
// same bits on CPU and GPU. Normals are computed in double on both; they differ at most by the last
// bit of log and cos in the two libraries.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace quern::kernels {

struct PhiloxBlock {
  uint32_t word[4];
};

// low, high = the 64-bit product, one instruction on the GPU. For a shift by 32, nvcc adds zero to
// the upper register; these additions made up a third of Philox.
QUERN_HD inline void multiply_wide(uint32_t a, uint32_t b, uint32_t& low, uint32_t& high) {
#ifdef __CUDA_ARCH__
  asm("{ .reg .b64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product; }"
      : "=r"(low), "=r"(high)
      : "r"(a), "r"(b));
#else
  const uint64_t product = uint64_t{a} * b;
  low = static_cast<uint32_t>(product);
  high = static_cast<uint32_t>(product >> 32);
#endif
}

// Ten rounds over a 128-bit counter with a 64-bit key.
QUERN_HD inline PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t(&c)[4] = counter.word;
  for (int round = 0; round < 10; ++round) {
    uint32_t low0, high0, low1, high1;
    multiply_wide(c[0], 0xD2511F53u, low0, high0);
    multiply_wide(c[2], 0xCD9E8D57u, low1, high1);
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B9u;  // the golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

// The 128 random bits of element `index`.
QUERN_HD inline PhiloxBlock philox_block(uint64_t seed, uint64_t index) {
  const PhiloxBlock counter{
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}};
  return philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// The two 64-bit integers of a block.
QUERN_HD inline uint64_t low_bits(const PhiloxBlock& b) {
  return uint64_t{b.word[1]} << 32 | b.word[0];
}
QUERN_HD inline uint64_t high_bits(const PhiloxBlock& b) {
  return uint64_t{b.word[3]} << 32 | b.word[2];
}

// Uniform in [0, 1): 24 random bits as a float, 53 as a double; both exact.
template <class A>
QUERN_HD A philox_unit(const PhiloxBlock& b) {
  if constexpr (sizeof(A) == 4) {
    return static_cast<A>(b.word[0] >> 8) * A(1.0 / 16777216.0);
  } else {
    return static_cast<A>(low_bits(b) >> 11) * A(1.0 / 9007199254740992.0);
  }
}

// Uniform in [low, high). A: float or double; the fma makes every device round alike.
template <class A>
QUERN_HD A philox_uniform(uint64_t seed, uint64_t index, double low, double high) {
  const double unit = philox_unit<A>(philox_block(seed, index));
  const A value = static_cast<A>(::fma(high - low, unit, low));
  return value < static_cast<A>(high) ? value : static_cast<A>(low);  // if it rounded up to `high`
}

// Uniform integer in [0, bound): `bound` times a 64-bit random number, divided by 2^64. The bias is
// below bound / 2^64.
QUERN_HD inline uint32_t philox_integer(uint64_t seed, uint64_t index, uint32_t bound) {
  const PhiloxBlock b = philox_block(seed, index);
  const uint64_t carry = (uint64_t{b.word[0]} * bound) >> 32;
  return static_cast<uint32_t>((uint64_t{b.word[1]} * bound + carry) >> 32);
}

// Standard normal by Box and Muller, 1958: sqrt(-2 ln u) cos(2 pi v), u in (0, 1].
QUERN_HD inline double philox_normal(uint64_t seed, uint64_t index) {
  const PhiloxBlock b = philox_block(seed, index);
  const double u = (static_cast<double>(low_bits(b) >> 11) + 0.5) * (1.0 / 9007199254740992.0);
  const double v = static_cast<double>(high_bits(b) >> 11) * (1.0 / 9007199254740992.0);
  return ::sqrt(-2.0 * ::log(u)) * ::cos(6.283185307179586477 * v);
}

namespace detail {
template <int N>
QUERN_HD double horner(double x, const double (&c)[N]) {  // c[0] + c[1] x + c[2] x^2 + ...
  double sum = c[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = ::fma(sum, x, c[i]);
  return sum;
}
}  // namespace detail

// The normal quantile at 1/2 + q, |q| < 1/2, to a relative 1e-15: Wichura, algorithm AS 241
// (PPND16), 1988. A ratio of polynomials near the middle, two more in r = sqrt(-ln tail) beyond.
QUERN_HD inline double normal_quantile(double q) {
  if (::fabs(q) <= 0.425) {
    const double a[8] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                         1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                         3.3430575583588128105e4, 2.5090809287301226727e3};
    const double b[8] = {1.0,
                         4.2313330701600911252e1,
                         6.8718700749205790830e2,
                         5.3941960214247511077e3,
                         2.1213794301586595867e4,
                         3.9307895800092710610e4,
                         2.8729085735721942674e4,
                         5.2264952788528545610e3};
    const double r = 0.180625 - q * q;
    return q * detail::horner(r, a) / detail::horner(r, b);
  }
  const double r = ::sqrt(-::log(0.5 - ::fabs(q)));
  double x;
  if (r <= 5.0) {
    const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                         5.76949722146069140550e0,  3.64784832476320460504e0,
                         1.27045825245236838258e0,  2.41780725177450611770e-1,
                         2.27238449892691845833e-2, 7.74545014278341407640e-4};
    const double d[8] = {1.0,
                         2.05319162663775882187e0,
                         1.67638483018380384940e0,
                         6.89767334985100004550e-1,
                         1.48103976427480074590e-1,
                         1.51986665636164571966e-2,
                         5.47593808499534494600e-4,
                         1.05075007164441684324e-9};
    x = detail::horner(r - 1.6, c) / detail::horner(r - 1.6, d);
  } else {
    const double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                         1.78482653991729133580e0,  2.96560571828504891230e-1,
                         2.65321895265761230930e-2, 1.24266094738807843860e-3,
                         2.71155556874348757815e-5, 2.01033439929228813265e-7};
    const double f[8] = {1.0,
                         5.99832206555887937690e-1,
                         1.36929880922735805310e-1,
                         1.48753612908506148525e-2,
                         7.86869131145613259100e-4,
                         1.84631831751005468180e-5,
                         1.42151175831644588870e-7,
                         2.04426310338993978564e-15};
    x = detail::horner(r - 5.0, e) / detail::horner(r - 5.0, f);
  }
  return q < 0.0 ? -x : x;
}

// Standard normal conditioned on |x| <= limit (limit > 0): the quantile of a uniform number over
// the part of the distribution function that lies within.
QUERN_HD inline double philox_truncated_normal(uint64_t seed, uint64_t index, double limit) {
  const uint64_t bits = low_bits(philox_block(seed, index)) >> 11;
  const double unit = (static_cast<double>(bits) + 0.5) * (1.0 / 9007199254740992.0);
  const double inside = erf(limit * 0.70710678118654752440);  // P(|x| <= limit)
  const double x = normal_quantile((unit - 0.5) * inside);
  return x > limit ? limit : (x < -limit ? -limit : x);
}

}  // namespace quern::kernels
