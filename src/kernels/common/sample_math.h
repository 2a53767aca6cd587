// The arithmetic of sampling. Weights are integers with 40 fraction bits: their sums are exact in
// any order, and every step to a weight rounds alike on CPU and GPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"
#include "base/philox.h"
#include "kernels/sample.h"

namespace quern::kernels {

inline constexpr uint64_t kWeightOne = uint64_t{1} << 40;  // the weight of the most likely token

// A logit after the penalty; NaN becomes -inf, -0 becomes 0.
QUERN_HD inline float penalized(float logit, bool seen, float penalty) {
  if (seen) logit = logit > 0.0f ? logit / penalty : logit * penalty;
  return logit == logit ? logit + 0.0f : -HUGE_VALF;
}

// Maps floats to unsigned numbers of the same order; -inf maps above 0. Not for NaN.
QUERN_HD inline uint32_t ordered(float x) {
  const uint32_t bits = quern::detail::float_bits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// exp((x - largest) / temperature) 2^40, rounded down, with a relative error of 1e-6; x <= largest.
// Each multiply-add is an explicit fmaf, so that no compiler chooses. With y the exponent: y = n ln
// 2 + r, |r| <= ln(2) / 2, and exp(r) by its Taylor series to r^6.
QUERN_HD inline uint64_t sample_weight(float x, float largest, float inverse_temperature) {
  if (x == largest) return kWeightOne;
  const float y = (x - largest) * inverse_temperature;
  if (!(y > -28.0f)) return 0;           // exp(-28) is 0.76 2^-40
  constexpr float kRound = 12582912.0f;  // 1.5 2^23: adding it rounds to an integer
  const float n = fmaf(y, 1.44269504f, kRound) - kRound;
  float r = fmaf(n, -0.693145752f, y);
  r = fmaf(n, -1.42860677e-6f, r);
  float p = 1.38888889e-3f;
  p = fmaf(p, r, 8.33333333e-3f);
  p = fmaf(p, r, 4.16666667e-2f);
  p = fmaf(p, r, 1.66666667e-1f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  // p is above 0.7 and n at least -41: the sum of exponents stays in range.
  const uint32_t bits =
      quern::detail::float_bits(p) + (static_cast<uint32_t>(static_cast<int>(n) + 40) << 23);
  return static_cast<uint64_t>(quern::detail::bits_float(bits));
}

// The smallest sum of weights that reaches `share` of `total`; at least 1.
QUERN_HD inline uint64_t share_of(uint64_t total, double share) {
  const double exact = ceil(static_cast<double>(total) * share);
  if (share >= 1.0 || exact >= static_cast<double>(total)) return total;
  return exact < 1.0 ? 1 : static_cast<uint64_t>(exact);
}

// Uniform number `index` of the seed, in [0, 1), in units of 2^-24.
QUERN_HD inline uint32_t uniform_bits(uint64_t seed, uint64_t index) {
  return philox_block(seed, index).word[0] >> 8;
}
// floor(u total) for such a number u.
QUERN_HD inline uint64_t draw_below(uint64_t total, uint32_t u) {
  return (total >> 24) * u + (((total & 0xffffffu) * u) >> 24);
}

}  // namespace quern::kernels
