// The 16-bit floats: storage types that convert to and from float, rounding to nearest even.
// Arithmetic is never done in them: load, compute in float, store.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace quern {

namespace detail {
// nvcc 13 accepts std::bit_cast in device code only with extra flags: the GPU uses intrinsics.
QUERN_HD inline uint32_t float_bits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}
QUERN_HD inline float bits_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
}  // namespace detail

// bfloat16: the upper half of a float. 8 exponent bits, 7 stored mantissa bits.
struct bfloat16 {
  uint16_t bits;

  bfloat16() = default;
  QUERN_HD explicit bfloat16(float value) : bits(round(value)) {}
  QUERN_HD explicit operator float() const { return detail::bits_float(uint32_t{bits} << 16); }

  QUERN_HD static bfloat16 from_bits(uint16_t bits) {
    bfloat16 out;
    out.bits = bits;
    return out;
  }

 private:
  QUERN_HD static uint16_t round(float value) {
    const uint32_t u = detail::float_bits(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

// IEEE 754 binary16: 5 exponent bits, 10 stored mantissa bits.
struct float16 {
  uint16_t bits;

  float16() = default;
  QUERN_HD explicit float16(float value) : bits(round(value)) {}
  QUERN_HD explicit operator float() const { return widen(bits); }

  QUERN_HD static float16 from_bits(uint16_t bits) {
    float16 out;
    out.bits = bits;
    return out;
  }

 private:
  QUERN_HD static uint16_t round(float value) {
    const uint32_t u = detail::float_bits(value);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);  // NaN
    if (magnitude >= 0x477ff000u)
      return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {  // subnormal half: the float adder rounds at 2^-24 for us
      const float shifted = detail::bits_float(magnitude) + 0.5f;
      return static_cast<uint16_t>(sign | (detail::float_bits(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  QUERN_HD static float widen(uint16_t half) {
    const uint32_t sign = (uint32_t{half} & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u)
      return detail::bits_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x0400u) {  // subnormal: magnitude * 2^-24
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      return detail::bits_float(sign | detail::float_bits(value));
    }
    return detail::bits_float(sign | ((magnitude << 13) + 0x38000000u));
  }
};

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);

}  // namespace quern
