// The 8-bit float E4M3 of the OCP's FP8 formats: 4 exponent bits of bias 7, 3 stored mantissa bits,
// no infinity. A storage type like those of half.h. Magnitudes above the maximum, 448, become 448.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/host_device.h"

namespace quern {

struct float8 {
  uint8_t bits;

  static constexpr float kLargest = 448.0f;

  float8() = default;
  QUERN_HD explicit float8(float value) : bits(round(value)) {}
  QUERN_HD explicit operator float() const { return widen(bits); }

  QUERN_HD static float8 from_bits(uint8_t bits) {
    float8 out;
    out.bits = bits;
    return out;
  }

 private:
  QUERN_HD static uint8_t round(float value) {
    const uint32_t u = detail::float_bits(value);
    const uint32_t sign = (u >> 24) & 0x80u;
    const uint32_t magnitude = u & 0x7fffffffu;
    // Subnormal: the float adder rounds at 2^-9 for us.
    const float shifted = detail::bits_float(magnitude) + 16384.0f;
    const uint32_t subnormal = detail::float_bits(shifted) - 0x46800000u;
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    const uint32_t normal = (rounded - 0x3c000000u) >> 20;
    uint32_t out = magnitude < 0x3c800000u ? subnormal : normal;  // selects, which vectorise
    out = magnitude > 0x43e00000u ? 0x7eu : out;                  // above 448
    out |= sign;
    return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : out);  // NaN as the hardware's
  }
  QUERN_HD static float widen(uint8_t byte) {
    const uint32_t sign = (uint32_t{byte} & 0x80u) << 24;
    const uint32_t magnitude = byte & 0x7fu;
    if (magnitude == 0x7fu) return detail::bits_float(sign | 0x7fc00000u);
    if (magnitude < 8u) {  // subnormal: magnitude 2^-9
      const float value = static_cast<float>(magnitude) * 0.001953125f;
      return detail::bits_float(sign | detail::float_bits(value));
    }
    return detail::bits_float(sign | ((magnitude << 20) + 0x3c000000u));
  }
};

static_assert(sizeof(float8) == 1);

}  // namespace quern
