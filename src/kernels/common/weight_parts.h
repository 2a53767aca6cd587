// FP32 weights under bf16, in two parts of 16 bits: the BF16 copy that products read, and the low
// bits that the copy lacks. The copy is the nearest BF16 number; ties round toward zero. Both parts
// then restore the weight exactly. Ties to even would not: an even number would stand for 65,537
// weights.
#pragma once

#include "base/half.h"

namespace quern::kernels {

QUERN_HD inline uint16_t low_part(float weight) {
  return static_cast<uint16_t>(quern::detail::float_bits(weight));
}

QUERN_HD inline bfloat16 rounded_weight(float weight) {
  const uint32_t bits = quern::detail::float_bits(weight);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = is_nan ? bits >> 16 | 0x40u : (bits + 0x7fffu) >> 16;
  return bfloat16::from_bits(static_cast<uint16_t>(rounded));
}

// The weight of these parts. A NaN stays one.
QUERN_HD inline float joined_weight(bfloat16 rounded, uint16_t low) {
  const uint32_t high = uint32_t{rounded.bits} - (low > 0x8000u ? 1u : 0u);
  return quern::detail::bits_float(high << 16 | low);
}

}  // namespace quern::kernels
