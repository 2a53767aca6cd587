// Helpers of row-wise kernels. A group of threads (a warp, or a whole block for long rows) takes a
// row, sums over it, and keeps its elements in registers where they fit.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

inline constexpr int kRowThreads = 256;
inline constexpr int kBlockGroup = kRowThreads;
inline constexpr int64_t kWarpRow = 1024;  // the longest row that one warp takes

template <int kGroup>
__device__ __forceinline__ float group_sum(float x) {
  static_assert(kGroup == kWarpSize || kGroup == kBlockGroup);
  return kGroup == kWarpSize ? warp_sum(x) : block_sum(x);
}
template <int kGroup>
__device__ __forceinline__ float group_max(float x) {
  static_assert(kGroup == kWarpSize || kGroup == kBlockGroup);
  return kGroup == kWarpSize ? warp_max(x) : block_max(x);
}
template <int kGroup>
__device__ __forceinline__ int group_lane() {
  return static_cast<int>(threadIdx.x) % kGroup;
}

// Calls body(row) for the rows of this thread's group; a group's threads make the same calls.
template <int kGroup, class Body>
__device__ __forceinline__ void for_each_row(int64_t rows, Body body) {
  constexpr int kGroups = kRowThreads / kGroup;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGroups + threadIdx.x / kGroup;
  for (int64_t row = first; row < rows; row += static_cast<int64_t>(gridDim.x) * kGroups) body(row);
}

// Starts warp_kernel or block_kernel, whichever suits rows of C elements.
template <class... Parameters, class... Arguments>
void launch_rows(void (*warp_kernel)(Parameters...), void (*block_kernel)(Parameters...),
                 int64_t rows, int64_t C, Stream stream, Arguments&&... arguments) {
  const bool warps = C <= kWarpRow;
  launch(warps ? warp_kernel : block_kernel,
         grid_stride_blocks(rows, warps ? kRowThreads / kWarpSize : 1), dim3(kRowThreads), 0,
         stream, std::forward<Arguments>(arguments)...);
}

// Calls body(integral_constant<int, W>, i) for this thread's part of [0, n); neighbouring threads
// take neighbouring parts. W is N if `vectors` (then n is a multiple of N), else 1.
template <int kGroup, int N, class Body>
__device__ __forceinline__ void for_each_in_row(int64_t n, bool vectors, Body body) {
  if (vectors) {
    for (int64_t i = group_lane<kGroup>() * N; i < n; i += kGroup * N) {
      body(std::integral_constant<int, N>{}, i);
    }
  } else {
    for (int64_t i = group_lane<kGroup>(); i < n; i += kGroup) {
      body(std::integral_constant<int, 1>{}, i);
    }
  }
}

// --- rows that are needed more than once

inline constexpr int kChunk = 8;       // elements a thread takes at a time
inline constexpr int kHeldChunks = 4;  // chunks a thread keeps: rows up to 1024 (warp) or 8192

// A thread's part of a row. The last chunk is reused for all elements that do not fit.
using RowPart = float[kHeldChunks + 1][kChunk];

// Calls body(i, chunk, kept) for each chunk of this thread: elements [i, i + 8) of the row, at
// index `chunk` of a RowPart. Unless `kept`, others have used that index since the last pass.
template <int kGroup, class Body>
__device__ __forceinline__ void for_each_chunk(int64_t C, Body body) {
  const int64_t first = group_lane<kGroup>() * kChunk;
#pragma unroll
  for (int chunk = 0; chunk < kHeldChunks; ++chunk) {
    const int64_t i = first + chunk * (kGroup * kChunk);
    if (i < C) body(i, chunk, true);
  }
  for (int64_t i = first + kHeldChunks * kGroup * kChunk; i < C; i += kGroup * kChunk) {
    body(i, kHeldChunks, false);
  }
}

// x = row[i..i+8), zero past C. vectors: the row is 16-byte aligned and C a multiple of 8.
template <class T>
__device__ __forceinline__ void load_chunk(float (&x)[kChunk], const T* row, int64_t i, int64_t C,
                                           bool vectors) {
  if (vectors) {
    load_vec(x, row + i);
  } else {
#pragma unroll
    for (int e = 0; e < kChunk; ++e) x[e] = i + e < C ? to_float(row[i + e]) : 0.0f;
  }
}

template <class T>
__device__ __forceinline__ void store_chunk(T* row, const float (&x)[kChunk], int64_t i, int64_t C,
                                            bool vectors) {
  if (vectors) {
    store_vec(row + i, x);
  } else {
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      if (i + e < C) row[i + e] = from_float<T>(x[e]);
    }
  }
}

// Whether rows of C elements in all these arrays can be moved 16 bytes at a time. For the host.
inline bool chunks_aligned(std::initializer_list<const void*> arrays, int64_t C) {
  return C % kChunk == 0 && aligned16(arrays);
}

// --- rows that a thread keeps in memory format: a 16-bit element takes half a register

// N elements of T, 8 or 16 bytes, in whole registers (a struct of T would take one for each).
template <class T, int N>
struct Held {
  static constexpr int kWords = N * static_cast<int>(sizeof(T)) / 4;
  static_assert(kWords == 2 || kWords == 4);
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>);
  uint32_t words[kWords];

  __device__ __forceinline__ float operator[](int e) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(words[e]);
    } else {
      return __uint_as_float(e % 2 == 0 ? words[e / 2] << 16 : words[e / 2] & 0xffff0000u);
    }
  }
  // Sets element e. 16-bit elements must be set in the order e = 0, 1, 2 ...
  __device__ __forceinline__ void set(int e, float x) {
    if constexpr (std::is_same_v<T, float>) {
      words[e] = __float_as_uint(x);
    } else {
      const uint32_t bits = from_float<bfloat16>(x).bits;
      words[e / 2] = e % 2 == 0 ? bits : words[e / 2] | bits << 16;
    }
  }
  // Makes the compiler convert again at the next use. Otherwise it keeps the converted floats.
  __device__ __forceinline__ void stay_packed() {
#pragma unroll
    for (uint32_t& word : words) asm volatile("" : "+r"(word));
  }
};

template <class T, int N>
using HeldBits = std::conditional_t<Held<T, N>::kWords == 4, uint4, uint2>;

// p[0..N) if `inside`; otherwise zero, and p is not read.
template <int N, class T>
__device__ __forceinline__ Held<T, N> load_held(const T* p, bool inside) {
  HeldBits<T, N> bits{};
  if (inside) bits = *reinterpret_cast<const HeldBits<T, N>*>(p);
  return std::bit_cast<Held<T, N>>(bits);
}

template <class T, int N>
__device__ __forceinline__ void store_held(T* p, const Held<T, N>& x) {
  *reinterpret_cast<HeldBits<T, N>*>(p) = std::bit_cast<HeldBits<T, N>>(x);
}

// --- rows of whole 16-byte vectors: vector v of a thread is at column (v blockDim.x + threadIdx.x)
// kVecSize<T>, and threadIdx.y is the row within the block

template <class T>
__device__ __forceinline__ int vector_column(int v) {
  return static_cast<int>(v * blockDim.x + threadIdx.x) * kVecSize<T>;
}

// Threads with threadIdx.y 0 add the values of all threads with the same threadIdx.x to theirs.
template <int kThreads, int kVec>
__device__ __forceinline__ void sum_down(float (&x)[kVec]) {
  __shared__ float others[kThreads][kVec];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  __syncthreads();  // the reads of an earlier call are done
#pragma unroll
  for (int e = 0; e < kVec; ++e) others[thread][e] = x[e];
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int i = 1; i < static_cast<int>(blockDim.y); ++i) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[e] += others[thread + i * blockDim.x][e];
  }
}

// a and, if kBoth, b become their sums over the threads of a row. All threads of the block call it;
// `turn` is 0 and 1 in turn: two buffers need one barrier a call.
template <bool kBoth, int kThreads>
__device__ __forceinline__ void sum_of_row(float& a, float& b, int turn) {
  constexpr int kSums = kBoth ? 2 : 1, kWarps = kThreads / kWarpSize;
  static_assert(kWarps * kSums <= kWarpSize);  // a lane takes one partial sum
  __shared__ float partial[2][kWarps * kSums];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;  // of a row
  const int first = static_cast<int>(threadIdx.y) * warps;
  const int warp = first + static_cast<int>(threadIdx.x) / kWarpSize;
  if constexpr (kBoth) {  // the lower half of the lanes sums a, the upper half b
    const bool upper = lane >= kWarpSize / 2;
    float half = (upper ? b : a) + __shfl_xor_sync(~0u, upper ? a : b, kWarpSize / 2);
#pragma unroll
    for (int k = kWarpSize / 4; k > 0; k /= 2) half += __shfl_xor_sync(~0u, half, k);
    if (lane % (kWarpSize / 2) == 0) partial[turn][warp * kSums + lane / (kWarpSize / 2)] = half;
  } else {
    a = warp_sum(a);
    if (lane == 0) partial[turn][warp] = a;
  }
  __syncthreads();
  float sum = lane < kSums * warps ? partial[turn][first * kSums + lane] : 0.0f;
#pragma unroll
  for (int k = kWarpSize / 2; k >= kSums; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
  a = kBoth ? __shfl_sync(~0u, sum, 0) : sum;
  if constexpr (kBoth) b = __shfl_sync(~0u, sum, 1);
}

// Threads, in whole warps, that hold a row of C elements, `vectors` vectors each.
template <class T>
int64_t row_threads(int64_t C, int vectors) {
  return ceil_div(C, int64_t{vectors} * kVecSize<T> * kWarpSize) * kWarpSize;
}

// Whether rows of C elements in all these arrays consist of such vectors. For the host.
template <class T>
bool vector_rows(std::initializer_list<const void*> arrays, int64_t C) {
  return C > 0 && C % kVecSize<T> == 0 && aligned16(arrays);
}

}  // namespace quern::kernels::cuda
