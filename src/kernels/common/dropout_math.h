// The random numbers of a dropout mask, shared by both backends: the eight 16-bit halves of a block
// of Philox4x32-10. Random fills (random.h) leave the third and fourth counter words 0, so the
// streams differ.
#pragma once

#include "base/philox.h"
#include "kernels/dropout.h"

namespace quern::kernels {

// The words of elements 8 block .. 8 block + 7 of a site's stream.
QUERN_HD inline PhiloxBlock dropout_words(uint64_t seed, uint32_t site, uint64_t block) {
  constexpr uint32_t kStream = 1;
  const PhiloxBlock counter{
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), site, kStream}};
  return philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// Whether element `place` (0 to 7) of a block is kept: the even ones have the low halves. Both
// halves are compared as the upper half of a word, which takes no mask.
QUERN_HD inline bool dropout_keeps(const PhiloxBlock& words, int place, uint32_t threshold) {
  const uint32_t word = words.word[place / 2];
  return (place % 2 == 0 ? word << 16 : word) >= threshold << 16;
}

}  // namespace quern::kernels
