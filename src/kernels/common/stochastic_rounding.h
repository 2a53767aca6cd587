// Rounding of AdamW's moments to BF16, up or down at random, so that the mean of many roundings is
// the number itself: a moment's change by less than half a BF16 step would otherwise be lost at
// every update. The numbers depend on seed, update and place in the arena alone, hence not on the
// ranks or the device.
#pragma once

#include <bit>

#include "base/philox.h"

namespace quern::kernels {

inline constexpr int kMomentsABlock = 4;  // elements with one block of Philox

// The random words of elements 4 block .. 4 block + 3 at update t: the low half of an element's
// word is for m, the high half for v. Only this stream has the counter's highest bit set.
QUERN_HD inline PhiloxBlock rounding_words(uint64_t seed, uint64_t t, uint64_t block) {
  constexpr uint32_t kStream = 0x80000000u;
  const PhiloxBlock counter{{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                             static_cast<uint32_t>(t), static_cast<uint32_t>(t >> 32) | kStream}};
  return philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// x rounded to BF16: away from zero if its low 16 bits plus those of `random` overflow, else toward
// zero. Values that BF16 represents exactly, and non-finite ones, stay unchanged.
QUERN_HD inline float round_at_random(float x, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool finite = (bits & 0x7F800000u) != 0x7F800000u;
  const uint32_t rounded = (bits + (random & 0xFFFFu)) & 0xFFFF0000u;
  return finite ? std::bit_cast<float>(rounded) : x;
}

}  // namespace quern::kernels
