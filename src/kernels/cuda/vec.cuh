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

// Whether every pointer allows 16-byte accesses (a null one does). For the host.
inline bool aligned16(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return bits % 16 == 0;
}

// Calls body(integral_constant<int, W>, i) such that the ranges [i, i + W) cover [0, n) once, over
// the whole grid (1-d). W is N where `aligned`, and 1 for the rest. N i is a multiple of N there.
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

}  // namespace quern::kernels::cuda
