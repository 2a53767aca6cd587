// Elements of float, bfloat16 and float16 as floats: conversion by the hardware's instructions,
// 16-byte memory accesses, and the loop over contiguous elements that uses both.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/dtype.h"
#include "base/half.h"
#include "kernels/cuda/primitives/instructions.cuh"

namespace quern::kernels::cuda {

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(bfloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(float16 x) {
  return __half2float(__ushort_as_half(x.bits));
}

// Rounds to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return bfloat16::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
  } else {
    static_assert(std::is_same_v<T, float16>);
    return float16::from_bits(__half_as_ushort(__float2half_rn(x)));
  }
}

// Elements of T in one 16-byte access.
template <class T>
inline constexpr int kVecSize = 16 / static_cast<int>(sizeof(T));

// Plain bits, moved in one access where the size is a power of two up to 16.
template <class T, int N>
struct alignas(sizeof(T) * N) Packed {
  T v[N];
};

// x[0..N) = p[0..N). p must be aligned to min(16, N sizeof(T)) bytes; N a power of two.
template <int N, class T>
__device__ __forceinline__ void load_vec(float (&x)[N], const T* p) {
  constexpr int kStep = N < kVecSize<T> ? N : kVecSize<T>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    const auto chunk = *reinterpret_cast<const Packed<T, kStep>*>(p + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) x[i + j] = to_float(chunk.v[j]);
  }
}

// p[0..N) = x[0..N), rounded. Alignment as in load_vec.
template <int N, class T>
__device__ __forceinline__ void store_vec(T* p, const float (&x)[N]) {
  constexpr int kStep = N < kVecSize<T> ? N : kVecSize<T>;
#pragma unroll
  for (int i = 0; i < N; i += kStep) {
    Packed<T, kStep> chunk;
#pragma unroll
    for (int j = 0; j < kStep; ++j) chunk.v[j] = from_float<T>(x[i + j]);
    *reinterpret_cast<Packed<T, kStep>*>(p + i) = chunk;
  }
}

// W elements of float or bfloat16 as they lie in memory, W = 1 or kVecSize<T>: whole registers, so
// that many loads can be in flight before the first is used.
template <class T, int W>
using Raw = std::conditional_t<W == 1, T, uint4>;

template <class T, int W>
__device__ __forceinline__ Raw<T, W> fill_raw(float x) {
  if constexpr (W == 1) {
    return from_float<T>(x);
  } else if constexpr (std::is_same_v<T, float>) {
    const uint32_t bits = __float_as_uint(x);
    return make_uint4(bits, bits, bits, bits);
  } else {
    static_assert(std::is_same_v<T, bfloat16>);
    const uint32_t bits = from_float<bfloat16>(x).bits * 0x10001u;
    return make_uint4(bits, bits, bits, bits);
  }
}

// p must be aligned to W sizeof(T) bytes, here and in store_raw.
template <int W, class T>
__device__ __forceinline__ Raw<T, W> load_raw(const T* p) {
  static_assert(W == 1 || W == kVecSize<T>);
  return *reinterpret_cast<const Raw<T, W>*>(p);
}

template <class T, int W>
__device__ __forceinline__ void unpack(float (&x)[W], const Raw<T, W>& raw) {
  if constexpr (W == 1) {
    x[0] = to_float(raw);
  } else {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        x[i] = __uint_as_float(words[i]);
      } else {
        static_assert(std::is_same_v<T, bfloat16>);
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
  }
}

// p[0..W) = x[0..W), rounded to nearest even, in one access.
template <int W, class T>
__device__ __forceinline__ void store_raw(T* p, const float (&x)[W]) {
  static_assert(W == 1 || W == kVecSize<T>);
  if constexpr (W == 1) {
    *p = from_float<T>(x[0]);
  } else {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        words[i] = __float_as_uint(x[i]);
      } else {
        static_assert(std::is_same_v<T, bfloat16>);
        words[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
      }
    }
    // The compiler may split a 16-byte assignment into four accesses, but not this instruction.
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

// exp(x) as exactly as a result stored as T needs: expf for float, else the hardware's power of
// two. Its relative error is about |x| 2^-23, and results below 2^-126 are 0.
template <class T>
__device__ __forceinline__ float exp_for(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return expf(x);
  } else {
    constexpr float kLog2e = 1.44269504f;
    return fast_exp2(x * kLog2e);
  }
}

// Whether every pointer allows 16-byte accesses (a null one does). For the host.
inline bool aligned16(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return bits % 16 == 0;
}

// Calls body(integral_constant<int, W>, i) so that the ranges [i, i + W) cover [0, n) once, over
// the whole grid (1-d). W is N if `aligned` (i is then a multiple of N), and 1 for the rest.
template <int N, class Body>
__device__ __forceinline__ void for_each_vec(int64_t n, bool aligned, Body body) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t vectors = aligned ? n / N : 0;
  for (int64_t v = thread; v < vectors; v += threads) {
    body(std::integral_constant<int, N>{}, v * N);
  }
  for (int64_t i = vectors * N + thread; i < n; i += threads) {
    body(std::integral_constant<int, 1>{}, i);
  }
}

// Calls body(i) for i in [0, n), over the whole grid (1-d).
template <class Body>
__device__ __forceinline__ void for_each_index(int64_t n, Body body) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += threads) {
    body(i);
  }
}

}  // namespace quern::kernels::cuda
