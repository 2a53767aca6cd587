// Walks K arrays of one shape, each with its own strides. The host simplifies the layout; a thread
// maps an element's number to its offset in each array.
#pragma once

#include <bit>
#include <cstdint>

#include "base/shape.h"
#include "kernels/binary.h"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

// Division of n < 2^31 by a fixed divisor, as a multiplication (Granlund and Montgomery, 1994).
struct FastDivisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d)
      : divisor(d), shift(static_cast<uint32_t>(std::bit_width(d - 1))) {
    const uint64_t power = uint64_t{1} << shift;
    multiplier = static_cast<uint32_t>(((power - d) << 32) / d + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

template <int K>
struct Strided {
  int ndim = 0;
  int64_t shape[kMaxDims] = {};
  int64_t strides[K][kMaxDims] = {};  // elements
  int64_t base[K] = {};               // offset of the first element

  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
};

// Drops extents of 1 and merges neighbouring dimensions that every array traverses with one stride.
// Needs numel() > 0; at least one dimension remains.
template <int K>
Strided<K> simplified(const Strided<K>& from) {
  Strided<K> to;
  for (int k = 0; k < K; ++k) to.base[k] = from.base[k];
  for (int d = 0; d < from.ndim; ++d) {
    if (from.shape[d] == 1) continue;
    bool merges = to.ndim > 0;
    for (int k = 0; merges && k < K; ++k) {
      merges = to.strides[k][to.ndim - 1] == from.strides[k][d] * from.shape[d];
    }
    const int at = merges ? to.ndim - 1 : to.ndim++;
    to.shape[at] = merges ? to.shape[at] * from.shape[d] : from.shape[d];
    for (int k = 0; k < K; ++k) to.strides[k][at] = from.strides[k][d];
  }
  if (to.ndim == 0) {
    to.ndim = 1;
    to.shape[0] = 1;
    for (int k = 0; k < K; ++k) to.strides[k][0] = 1;
  }
  return to;
}

// Makes W neighbours along the last dimension one element of a simplified layout, when every array
// allows it. Its stride there must be 1 and each group aligned to `bytes[k]`, or, if `may_repeat`,
// its stride 0. `address[k]` is the array's (several arrays of one layout: the bitwise or). Strides
// stay in single elements. Returns whether it grouped.
template <int K>
bool group_by(int W, Strided<K>& layout, const uintptr_t (&address)[K], const int (&bytes)[K],
              bool may_repeat) {
  const int last = layout.ndim - 1;
  if (layout.shape[last] % W != 0) return false;
  for (int k = 0; k < K; ++k) {
    if (layout.strides[k][last] == 0 && may_repeat) continue;
    if (layout.strides[k][last] != 1 || layout.base[k] % W != 0) return false;
    if (address[k] % static_cast<uintptr_t>(bytes[k]) != 0) return false;
    for (int d = 0; d < last; ++d) {
      if (layout.strides[k][d] % W != 0) return false;
    }
  }
  layout.shape[last] /= W;
  for (int k = 0; k < K; ++k) layout.strides[k][last] *= W;
  return true;
}

// A layout as kernels take it: fewer than 2^31 elements (or groups), numbered in row-major order.
template <int K>
struct StridedIndex {
  int ndim = 1;
  uint32_t count = 0;
  FastDivisor extent[kMaxDims];
  int64_t strides[K][kMaxDims] = {};
  int64_t base[K] = {};

  __device__ __forceinline__ void offsets(uint32_t i, int64_t (&offset)[K]) const {
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] = base[k];
    for (int d = ndim - 1; d > 0; --d) {
      const uint32_t next = extent[d].divide(i);
      const uint32_t here = i - next * extent[d].divisor;
#pragma unroll
      for (int k = 0; k < K; ++k) offset[k] += here * strides[k][d];
      i = next;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] += i * strides[k][0];
  }
  // Whether array k repeats one element along the last dimension.
  __device__ __forceinline__ bool repeats(int k) const {
    return strides[k][ndim - 1] == 0;
  }
};

// Calls run(StridedIndex) for parts of fewer than 2^31 elements that cover the layout.
template <int K, class Run>
void for_each_part(const Strided<K>& layout, Run&& run) {
  const int64_t n = layout.numel();
  if (n > INT32_MAX) {  // halve the longest dimension
    int longest = 0;
    for (int d = 1; d < layout.ndim; ++d) {
      if (layout.shape[d] > layout.shape[longest]) longest = d;
    }
    Strided<K> lower = layout, upper = layout;
    lower.shape[longest] /= 2;
    upper.shape[longest] -= lower.shape[longest];
    for (int k = 0; k < K; ++k) {
      upper.base[k] += lower.shape[longest] * layout.strides[k][longest];
    }
    for_each_part(lower, run);
    for_each_part(upper, run);
    return;
  }
  StridedIndex<K> index;
  index.ndim = layout.ndim;
  index.count = static_cast<uint32_t>(n);
  for (int d = 0; d < layout.ndim; ++d) {
    index.extent[d] = FastDivisor(static_cast<uint32_t>(layout.shape[d]));
    for (int k = 0; k < K; ++k) index.strides[k][d] = layout.strides[k][d];
  }
  for (int k = 0; k < K; ++k) index.base[k] = layout.base[k];
  run(index);
}

// Calls run(integral_constant<int, W>, StridedIndex) for the parts of a layout. W is N where groups
// of N neighbours allow it (see group_by; an input may repeat an element), else 1.
template <int N, int K, class Run>
void for_each_grouped_part(Strided<K> layout, const uintptr_t (&address)[K], const int (&bytes)[K],
                           Run&& run) {
  if (layout.numel() == 0) return;
  layout = simplified(layout);
  const bool grouped = group_by(N, layout, address, bytes, /*may_repeat=*/true);
  for_each_part(layout, [&](const StridedIndex<K>& at) {
    if (grouped) {
      run(std::integral_constant<int, N>{}, at);
    } else {
      run(std::integral_constant<int, 1>{}, at);
    }
  });
}

inline uintptr_t address(const void* p) {
  return reinterpret_cast<uintptr_t>(p);
}

// A binary op's arrays: the contiguous output, a, b and, if K is 4, the output's gradient.
template <int K>
Strided<K> strided(const BinaryLayout& layout) {
  Strided<K> all;
  all.ndim = layout.ndim;
  int64_t step = 1;
  for (int d = layout.ndim - 1; d >= 0; --d) {
    all.shape[d] = layout.shape[d];
    all.strides[0][d] = step;
    all.strides[1][d] = layout.a_strides[d];
    all.strides[2][d] = layout.b_strides[d];
    if constexpr (K > 3) all.strides[3][d] = layout.dc_strides[d];
    step *= layout.shape[d];
  }
  return all;
}

// Loads x[0..W) from p: W neighbours, or one element W times.
template <int W, class T>
__device__ __forceinline__ void load_or_repeat(float (&x)[W], const T* p, bool repeat) {
  if (W > 1 && repeat) {
    const float value = to_float(*p);
#pragma unroll
    for (int j = 0; j < W; ++j) x[j] = value;
  } else {
    load_vec(x, p);
  }
}

}  // namespace quern::kernels::cuda
