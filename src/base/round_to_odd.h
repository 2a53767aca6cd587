// Rounding to odd, the first of two steps from double to a 16-bit float.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace quern {

// A float whose last bit is set when rounding was inexact ("round to odd"), so that rounding it
// again to a 16-bit float gives the same as rounding `value` directly (Boldo and Melquiond 2008,
// "Emulation of FMA and correctly rounded sums").
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // towards zero
  return std::bit_cast<float>(bits | 1u);
}

}  // namespace quern
