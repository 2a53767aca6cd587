// Attention over a key/value cache for one new token: the sizes of its division, and a warp's work
// on the token's own heads and on its share of a head's keys and values. See
// decode_attention_part.cuh.
#pragma once

#include "kernels/cuda/decode/decode_rounding.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/decode_attention.h"

namespace quern::kernels::cuda {

inline constexpr int kPartWarps = 4, kPartThreads = kPartWarps * kWarpSize;
inline constexpr int kHeadParts = 8;     // parts of kPartWarps warps that share a head's keys
inline constexpr int kLaneElements = 8;  // of a head that a lane holds

// The warp's number in its part, and the thread's.
__device__ __forceinline__ int part_warp() {
  return static_cast<int>(threadIdx.x) / kWarpSize % kPartWarps;
}
__device__ __forceinline__ int part_thread() {
  return static_cast<int>(threadIdx.x) % kPartThreads;
}

// One head of the new token as a warp holds it: element i < D / 2 is x1[j] of the lane with
// i = lane + 32 j, element i + D / 2 its x2[j]. D is at most 64 kPairs.
template <class T, int kPairs>
struct TokenHead {
  float x1[kPairs], x2[kPairs];

  // RMSNorm by `norm` unless it is null.
  __device__ __forceinline__ void normalize(const float* norm, const DecodeAttention<T>& a) {
    if (norm == nullptr) return;
    const int half = static_cast<int>(a.D / 2), lane = static_cast<int>(threadIdx.x) % kWarpSize;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      squares = fmaf(x1[j], x1[j], fmaf(x2[j], x2[j], squares));
    }
    const float r = norm_factor(warp_sum(squares), a.D, a.eps);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      if (i >= half) continue;
      x1[j] = rounded<T>(__ldg(norm + i) * (x1[j] * r));
      x2[j] = rounded<T>(__ldg(norm + i + half) * (x2[j] * r));
    }
  }
  __device__ __forceinline__ void rotate(const float (&cos)[kPairs], const float (&sin)[kPairs]) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const float y1 = rounded<T>(x1[j] * cos[j] - x2[j] * sin[j]);
      x2[j] = rounded<T>(x2[j] * cos[j] + x1[j] * sin[j]);
      x1[j] = y1;
    }
  }
  template <class Out>
  __device__ __forceinline__ void store(Out* y, float factor, int64_t D) const {
    const int half = static_cast<int>(D / 2), lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      if (i >= half) continue;
      y[i] = from_float<Out>(x1[j] * factor);
      y[i + half] = from_float<Out>(x2[j] * factor);
    }
  }
};

// An online softmax over some keys: sums of exp2(s - max) and of it times v.
template <int kHeads>
struct Softmax {
  float max[kHeads], sum[kHeads], acc[kHeads][kLaneElements];

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      max[h] = -INFINITY;
      sum[h] = 0.0f;
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) acc[h][e] = 0.0f;
    }
  }
};

// The factor that rescales sums under `max` to a larger maximum.
__device__ __forceinline__ float rescale(float max, float larger) {
  const float power = fast_exp2(max - larger);
  return max == -INFINITY ? 0.0f : power;
}

// A lane's elements of `kUnroll` keys or values.
template <class T, int kUnroll>
struct Elements {
  static constexpr int kVectors = kLaneElements / kVecSize<T>;
  uint4 raw[kUnroll][kVectors];

  // If not `present`, keeps the old elements, or zeroes them if `zero`.
  __device__ __forceinline__ void load(int u, const T* p, bool present, bool zero) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (zero) raw[u][i] = make_uint4(0, 0, 0, 0);
      if (present) raw[u][i] = reinterpret_cast<const uint4*>(p)[i];
    }
  }
  __device__ __forceinline__ void get(float (&x)[kLaneElements], int u) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      float part[kVecSize<T>];
      unpack<T>(part, raw[u][i]);
#pragma unroll
      for (int e = 0; e < kVecSize<T>; ++e) x[i * kVecSize<T> + e] = part[e];
    }
  }
};

// The keys of a part, [begin, end) of one kv head. A warp takes kUnroll kSlots of them at a time;
// kLanes lanes share a key.
template <class T, int kHeads, int kLanes>
struct KeyReader {
  static constexpr int kUnroll = 4, kSlots = kWarpSize / kLanes;
  static constexpr int kStep = kPartWarps * kUnroll * kSlots;

  const T *k, *v;  // this lane's elements of position 0
  int64_t stride;
  int begin, end;
  bool holds;  // the lane's elements are within the head
  Elements<T, kUnroll> keys, values;

  __device__ __forceinline__ int key(int base, int u) const {
    return base + u * kSlots + static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
  }
  __device__ __forceinline__ int first() const { return begin + part_warp() * kUnroll * kSlots; }
  // Loads those with from <= key < to. The others stay unchanged, or are zeroed.
  __device__ __forceinline__ void load(int base, int from, int to, bool zero) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = key(base, u);
      const bool present = holds && from <= at && at < to;
      keys.load(u, k + at * stride, present, zero);
      values.load(u, v + at * stride, present, zero);
    }
  }
};

// Attends a warp's keys with kHeads queries. The first keys were loaded before, except the newest,
// at `position`. `q` (kHeads, D) is in shared memory, scaled for exp2.
template <class T, int kHeads, int kLanes>
__device__ __forceinline__ void attend(Softmax<kHeads>& softmax, const float* q,
                                       KeyReader<T, kHeads, kLanes>& reader, int position, int D) {
  using Reader = KeyReader<T, kHeads, kLanes>;
  constexpr int kUnroll = Reader::kUnroll;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kLaneElements;
  float query[kHeads][kLaneElements];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) {
      query[h][e] = reader.holds ? q[h * D + first + e] : 0.0f;
    }
  }
#pragma unroll 1
  for (int base = reader.first(); base < reader.end; base += Reader::kStep) {
    const bool started = base == reader.first();
    reader.load(base, started ? position : 0, reader.end, !started);
    const auto& keys = reader.keys;
    const auto& values = reader.values;
    float s[kUnroll][kHeads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float x[kLaneElements];
      keys.get(x, u);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0.0f;
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) dot = fmaf(query[h][e], x[e], dot);
        dot = warp_reduce<SumOp, kLanes>(dot, SumOp{});
        s[u][h] = reader.key(base, u) < reader.end ? dot : -INFINITY;
      }
    }
    float p[kUnroll][kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float max = softmax.max[h];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) max = fmaxf(max, s[u][h]);
      const float factor = rescale(softmax.max[h], max);
      softmax.max[h] = max;
      softmax.sum[h] *= factor;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        p[u][h] = rescale(s[u][h], max);
        softmax.sum[h] += p[u][h];
      }
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) softmax.acc[h][e] *= factor;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float x[kLaneElements];
      values.get(x, u);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int e = 0; e < kLaneElements; ++e) {
          softmax.acc[h][e] = fmaf(p[u][h], x[e], softmax.acc[h][e]);
        }
      }
    }
  }
}

// Merges the lanes that hold the same elements of different keys; each of them gets the result.
template <int kHeads, int kLanes>
__device__ __forceinline__ void merge_lanes(Softmax<kHeads>& softmax) {
#pragma unroll
  for (int offset = kLanes; offset < kWarpSize; offset *= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float other = __shfl_xor_sync(0xffffffffu, softmax.max[h], offset);
      const float max = fmaxf(softmax.max[h], other);
      const float factor = rescale(softmax.max[h], max);
      softmax.max[h] = max;
      softmax.sum[h] *= factor;
      softmax.sum[h] += __shfl_xor_sync(0xffffffffu, softmax.sum[h], offset);
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) {
        const float mine = softmax.acc[h][e] * factor;
        softmax.acc[h][e] = mine + __shfl_xor_sync(0xffffffffu, mine, offset);
      }
    }
  }
}

}  // namespace quern::kernels::cuda
