// How the blocks of decode_token.cu pass values to each other within one kernel: in 8-byte words, 4
// bytes of values and 4 of a tag, written and read at once. A reader polls until the tag is the
// expected one. So a value needs no flag or barrier beside it: one way through L2 and back.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

// Elements of TX in a word.
template <class TX>
inline constexpr int kWordElements = 4 / static_cast<int>(sizeof(TX));

using Word = uint64_t;

__device__ __forceinline__ Word make_word(uint32_t value, uint32_t tag) {
  return Word{tag} << 32 | value;
}
__device__ __forceinline__ void send(Word* to, uint32_t value, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
               "l"(make_word(value, tag))
               : "memory");
}
// `to` is aligned to 16 bytes.
__device__ __forceinline__ void send_two(Word* to, uint32_t first, uint32_t second, uint32_t tag) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "l"(make_word(first, tag)), "l"(make_word(second, tag))
               : "memory");
}
// Sends elements i and i + 1 of a range of words, i even.
template <class TX>
__device__ __forceinline__ void send_elements(Word* range, int64_t i, float first, float second,
                                              uint32_t tag) {
  if constexpr (kWordElements<TX> == 1) {
    send_two(range + i, __float_as_uint(first), __float_as_uint(second), tag);
  } else {
    const uint32_t low = from_float<TX>(first).bits, high = from_float<TX>(second).bits;
    send(range + i / 2, high << 16 | low, tag);
  }
}

// Reads a word, or two (aligned to 16 bytes), once. Returns whether the values are there.
__device__ __forceinline__ bool look(const Word* from, uint32_t tag, uint32_t& value) {
  Word word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];"
               : "=l"(word)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  value = static_cast<uint32_t>(word);
  return static_cast<uint32_t>(word >> 32) == tag;
}
__device__ __forceinline__ bool look_two(const Word* from, uint32_t tag, uint32_t& first,
                                         uint32_t& second) {
  Word a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  first = static_cast<uint32_t>(a);
  second = static_cast<uint32_t>(b);
  return static_cast<uint32_t>(a >> 32) == tag && static_cast<uint32_t>(b >> 32) == tag;
}

// Waits between two looks.
__device__ __forceinline__ void pause() {
  __nanosleep(20);
}

// Waits for kCount groups of 8 elements of TX, except those with a null pointer. Loads all of them
// at once, and the missing ones again. raw[k]: the 8 elements' bits.
template <class TX, int kCount>
__device__ __forceinline__ void receive_eights(const Word* (&from)[kCount], uint32_t tag,
                                               uint32_t (&raw)[kCount][8 / kWordElements<TX>]) {
  constexpr int kWords = 8 / kWordElements<TX>;
  for (;;) {
    bool missing[kCount], any = false;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      missing[k] = false;
      if (from[k] == nullptr) continue;
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        missing[k] = !look_two(from[k] + i, tag, raw[k][i], raw[k][i + 1]) || missing[k];
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!missing[k]) from[k] = nullptr;
      any = any || missing[k];
    }
    if (!any) return;
    pause();
  }
}

}  // namespace quern::kernels::cuda
