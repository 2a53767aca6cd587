// Converts one element between any two dtypes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace quern::kernels::cpu {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

// A float whose last bit is set when rounding was inexact ("round to odd"), so that rounding it
// again to a 16-bit float gives the same as rounding `value` directly.
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // towards zero
  return std::bit_cast<float>(bits | 1u);
}

// Floats round to nearest even, float to integer truncates, anything to bool is `!= 0`.
template <class D, class S>
D convert(S value) {
  if constexpr (std::is_same_v<D, S>) {
    return value;
  } else if constexpr (kIsHalf<S>) {
    return convert<D>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<D, bool>) {
    return value != S(0);
  } else if constexpr (kIsHalf<D> && (std::is_same_v<S, double> || std::is_integral_v<S>)) {
    return D(round_to_odd(static_cast<double>(value)));
  } else {
    return static_cast<D>(value);
  }
}

}  // namespace quern::kernels::cpu
