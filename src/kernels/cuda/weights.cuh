// Vectors of weights, in FP32 or in two parts.
#pragma once

#include <type_traits>

#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/weights.h"

namespace quern::kernels::cuda {

// x[0..N) = the weights from i on. N of a part are one access, so i is a multiple of N.
template <int N>
__device__ __forceinline__ void load_parts(float (&x)[N], const bfloat16* copies,
                                           const uint16_t* low, int64_t i) {
  const auto high = *reinterpret_cast<const Packed<bfloat16, N>*>(copies + i);
  const auto rest = *reinterpret_cast<const Packed<uint16_t, N>*>(low + i);
#pragma unroll
  for (int e = 0; e < N; ++e) x[e] = joined_weight(high.v[e], rest.v[e]);
}

template <bool kWithLow, int N>
__device__ __forceinline__ void store_parts(bfloat16* copies, uint16_t* low, int64_t i,
                                            const float (&x)[N]) {
  Packed<bfloat16, N> high;
  Packed<uint16_t, N> rest;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    high.v[e] = rounded_weight(x[e]);
    rest.v[e] = low_part(x[e]);
  }
  *reinterpret_cast<Packed<bfloat16, N>*>(copies + i) = high;
  if constexpr (kWithLow) *reinterpret_cast<Packed<uint16_t, N>*>(low + i) = rest;
}

// kSplit: whether the weights lie in two parts. A run-time branch would split nearby vector
// accesses into single elements, which take seven times as long in the host's memory.
template <bool kSplit, int N>
__device__ __forceinline__ void load_weights(float (&x)[N], const WeightArrays& weights,
                                             int64_t i) {
  if constexpr (kSplit) {
    load_parts(x, weights.copies, weights.low, i);
  } else {
    load_vec(x, weights.values + i);
  }
}

template <bool kSplit, int N>
__device__ __forceinline__ void store_weights(const WeightArrays& weights, int64_t i,
                                              const float (&x)[N]) {
  if constexpr (kSplit) {
    store_parts<true>(weights.copies, weights.low, i, x);
  } else {
    store_vec(weights.values + i, x);
  }
}

// Calls f(whether the weights are split), as a constant.
template <class F>
void with_split(const WeightArrays& weights, const F& f) {
  if (weights.values == nullptr) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

inline bool aligned16(const WeightArrays& weights) {
  return aligned16({weights.values, weights.copies, weights.low});
}

}  // namespace quern::kernels::cuda
