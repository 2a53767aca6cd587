// Attention of one token a row. Bound by reading the cache: a cluster of blocks shares the keys of
// a row's kv head, every warp has several keys and values under way, and the blocks' partial
// softmaxes are merged through their shared memory, in the order of the blocks.
#include "kernels/decode_attention.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/launch_hopper.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr int kCluster = 8;       // blocks a kv head of a row
constexpr int kLaneElements = 8;  // of a head that a lane holds
constexpr int kPairs = 4;         // of a head that a lane rotates: D up to 256

template <class T>
struct AttentionWork {
  DecodeAttention<T> a;
  int groups = 1;  // blocks (or clusters) that share a kv head's query heads
};

__device__ __forceinline__ float load_past_l1(const float* p) {
  return __ldcg(p);
}
__device__ __forceinline__ float load_past_l1(const bfloat16* p) {
  return to_float(bfloat16::from_bits(__ldcg(reinterpret_cast<const unsigned short*>(p))));
}
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// What a warp makes of a head of q or k: element i < D / 2 is x1[j] of the lane with i = lane + 32
// j, element i + D / 2 its x2[j].
template <class T>
struct RotatedHead {
  float x1[kPairs], x2[kPairs];

  __device__ __forceinline__ RotatedHead(const T* x, const float* norm, int64_t position,
                                         const DecodeAttention<T>& a) {
    const int half = static_cast<int>(a.D / 2), lane = static_cast<int>(threadIdx.x) % kWarpSize;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      x1[j] = i < half ? load_past_l1(x + i) : 0.0f;
      x2[j] = i < half ? load_past_l1(x + i + half) : 0.0f;
      squares = fmaf(x1[j], x1[j], fmaf(x2[j], x2[j], squares));
    }
    const float mean = warp_sum(squares) / static_cast<float>(a.D);
    const float r = 1.0f / sqrtf(mean + static_cast<float>(a.eps));
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      if (i >= half) continue;
      if (norm != nullptr) {
        x1[j] = rounded<T>(__ldg(norm + i) * (x1[j] * r));
        x2[j] = rounded<T>(__ldg(norm + i + half) * (x2[j] * r));
      }
      const float cos = __ldg(a.cos + position * half + i),
                  sin = __ldg(a.sin + position * half + i);
      const float y1 = rounded<T>(x1[j] * cos - x2[j] * sin);
      x2[j] = rounded<T>(x2[j] * cos + x1[j] * sin);
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

// The power that scales what was summed under `max` to a larger one.
__device__ __forceinline__ float rescale(float max, float larger) {
  return max == -INFINITY ? 0.0f : exp2f(max - larger);
}

// A lane's elements of `kUnroll` keys or values.
template <class T, int kUnroll>
struct Elements {
  static constexpr int kVectors = kLaneElements / kVecSize<T>;
  uint4 raw[kUnroll][kVectors];

  // Keeps what it has, or zeroes it, when there is nothing to load.
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

// The keys of a block, [begin, end) of one kv head, of which this warp takes kUnroll kSlots at a
// time; kLanes lanes share a key.
template <class T, int kHeads, int kLanes>
struct KeyReader {
  static constexpr int kUnroll = kHeads <= 4 ? 4 : 2, kSlots = kWarpSize / kLanes;
  static constexpr int kStep = kWarps * kUnroll * kSlots;

  const T *k, *v;  // this lane's elements of position 0
  int64_t stride;
  int begin, end;
  bool holds;  // the lane's elements are within the head
  Elements<T, kUnroll> keys, values;

  __device__ __forceinline__ int key(int base, int u) const {
    return base + u * kSlots + static_cast<int>(threadIdx.x) % kWarpSize / kLanes;
  }
  __device__ __forceinline__ int first() const {
    return begin + static_cast<int>(threadIdx.x) / kWarpSize * kUnroll * kSlots;
  }
  // Those with from <= key < to; the others are left as they are, or zeroed.
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

// All of a warp's keys against kHeads queries. The first ones were read before, but the newest,
// which is at `position`. `q` (kHeads, D) lies in shared memory, scaled for exp2.
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

// The lanes that hold the same elements of different keys, into each of them.
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

// Shared memory of a block: the queries, the states (max, sum, D sums) of each head by warp, and
// those that the blocks of the cluster send for the heads that this one finishes: head h is
// finished by block h % blocks.
struct AttentionMemory {
  float *q, *warps, *sent;
  int width;  // of a state

  __device__ AttentionMemory(float* memory, int heads, int D)
      : q(memory),
        warps(memory + heads * D),
        sent(warps + kWarps * heads * (D + 2)),
        width(D + 2) {}
};
int64_t attention_bytes(int64_t heads, int64_t D) {
  const int64_t states = kWarps * heads + std::max<int64_t>(kCluster, heads);
  return (heads * D + states * (D + 2)) * static_cast<int64_t>(sizeof(float));
}

// kParts states of a head merged in their order: the sum for element `at` (2 and up), `sum` the one
// of all weights and `max` their maximum. All loads are under way before the first is used.
template <int kParts>
struct MergedState {
  float max = -INFINITY, sum = 0.0f, value = 0.0f;

  template <class Load>
  __device__ __forceinline__ MergedState(int parts, int at, const Load& load) {
    float maxima[kParts], sums[kParts], values[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      maxima[i] = i < parts ? load(i, 0) : -INFINITY;
      sums[i] = i < parts ? load(i, 1) : 0.0f;
      values[i] = i < parts ? load(i, at) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) max = fmaxf(max, maxima[i]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float factor = rescale(maxima[i], max);
      sum = fmaf(sums[i], factor, sum);
      value = fmaf(values[i], factor, value);
    }
  }
};

// Few registers, so that its blocks find room beside those of the kernels around it.
template <class T, int kHeads, int kLanes>
__global__ void __launch_bounds__(kThreads, kHeads == 1   ? 4
                                            : kHeads == 4 ? 3
                                                          : 2)
    decode_attention_kernel(const __grid_constant__ AttentionWork<T> work) {
  extern __shared__ float attention_memory[];
  const DecodeAttention<T>& a = work.a;
  const int D = static_cast<int>(a.D), group = static_cast<int>(a.H / a.Hk);
  const AttentionMemory memory(attention_memory, kHeads, D);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int blocks = static_cast<int>(cluster_size()), rank = static_cast<int>(cluster_rank());
  const int64_t unit = blockIdx.x / blocks;
  const int first = static_cast<int>(unit % work.groups) * kHeads;  // of the kv head's queries
  const int heads = min(kHeads, group - first);
  const int64_t kv = unit / work.groups % a.Hk, b = unit / work.groups / a.Hk;
  T* const y = a.y + (b * a.H + kv * group + first) * D;
  let_next_start();
  cluster_arrive();
  // The rows and the keys before the new one are older than the kernel in front.
  const bool active = __ldcg(&a.rows[b].active) != 0;
  const int position = active ? __ldcg(&a.rows[b].length) : 0, keys = position + 1;
  const int share = static_cast<int>(ceil_div(keys, blocks));
  const int begin = min(keys, rank * share), end = min(keys, begin + share);
  T* const k = a.k_cache + (b * a.capacity * a.Hk + kv) * D;
  T* const v = a.v_cache + (b * a.capacity * a.Hk + kv) * D;
  const int element = lane % kLanes * kLaneElements;
  KeyReader<T, kHeads, kLanes> reader{k + element, v + element, a.Hk * D, begin, end, element < D};
  reader.load(reader.first(), 0, min(end, position), true);
  wait_for_previous();
  if (!active) {  // so says every block of the cluster
    cluster_wait();
    for (int i = static_cast<int>(threadIdx.x); rank == 0 && i < heads * D; i += kThreads) {
      y[i] = from_float<T>(0.0f);
    }
    return;
  }

  // The queries, and the new key and value, by the block whose keys they belong to.
  const T* const token = a.qkv + b * (a.H + 2 * a.Hk) * D;
  const int64_t at = position * a.Hk * D;
  const bool owner = begin <= position && position < end;
  const float scale = 1.44269504f / sqrtf(static_cast<float>(D));
  for (int i = warp; i < kHeads + (owner ? 2 : 0); i += kWarps) {
    if (i < heads) {
      RotatedHead<T>(token + (kv * group + first + i) * D, a.q_norm, position, a)
          .store(memory.q + i * D, scale, D);
    } else if (i < kHeads) {
      for (int d = lane; d < D; d += kWarpSize) memory.q[i * D + d] = 0.0f;
    } else if (i == kHeads) {
      RotatedHead<T>(token + (a.H + kv) * D, a.k_norm, position, a).store(k + at, 1.0f, D);
    } else {
      const T* const new_v = token + (a.H + a.Hk + kv) * D;
      for (int d = lane; d < D; d += kWarpSize) v[at + d] = from_float<T>(load_past_l1(new_v + d));
    }
  }
  __syncthreads();

  Softmax<kHeads> softmax;
  attend(softmax, memory.q, reader, position, D);
  merge_lanes<kHeads, kLanes>(softmax);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float* const state = memory.warps + (warp * kHeads + h) * memory.width;
    if (lane == 0) {
      state[0] = softmax.max[h];
      state[1] = softmax.sum[h];
    }
    if (lane < kLanes && element < D) {
#pragma unroll
      for (int e = 0; e < kLaneElements; ++e) state[2 + element + e] = softmax.acc[h][e];
    }
  }
  __syncthreads();
  cluster_wait();  // all its blocks have started: their shared memory is there
  const int slots = (heads + blocks - 1) / blocks;  // heads that a block finishes
  for (int i = static_cast<int>(threadIdx.x); i < heads * memory.width; i += kThreads) {
    const int h = i / memory.width, at = i % memory.width;
    const MergedState<kWarps> merged(kWarps, at, [&](int part, int element) {
      return memory.warps[(part * kHeads + h) * memory.width + element];
    });
    store_in_cluster(memory.sent + (rank * slots + h / blocks) * memory.width + at,
                     static_cast<uint32_t>(h % blocks),
                     at == 0   ? merged.max
                     : at == 1 ? merged.sum
                               : merged.value);
  }
  cluster_arrive();
  cluster_wait();
  for (int h = rank; h < heads; h += blocks) {
    for (int d = static_cast<int>(threadIdx.x); d < D; d += kThreads) {
      const MergedState<kCluster> merged(blocks, 2 + d, [&](int part, int element) {
        return memory.sent[(part * slots + h / blocks) * memory.width + element];
      });
      y[h * D + d] = from_float<T>(merged.value / merged.sum);
    }
  }
}

template <class T, int kHeads, int kLanes>
void launch_attention(AttentionWork<T> work, bool early, Stream stream) {
  const auto kernel = decode_attention_kernel<T, kHeads, kLanes>;
  const DecodeAttention<T>& a = work.a;
  const bool hopper = has_hopper_code(kernel);
  const LaunchOptions options{hopper ? kCluster : 1, early && hopper};
  work.groups = static_cast<int>(ceil_div(a.H / a.Hk, kHeads));
  launch(options, kernel, one_block_each(a.B * a.Hk * work.groups * options.cluster),
         dim3(kThreads), static_cast<size_t>(attention_bytes(kHeads, a.D)), stream, work);
}

template <class T, int kHeads>
void launch_heads(const AttentionWork<T>& work, bool early, Stream stream) {
  if (work.a.D <= 64) return launch_attention<T, kHeads, 8>(work, early, stream);
  if (work.a.D <= 128) return launch_attention<T, kHeads, 16>(work, early, stream);
  launch_attention<T, kHeads, 32>(work, early, stream);
}

}  // namespace

template <class T>
void decode_attention(const DecodeAttention<T>& a, Stream stream, bool early) {
  QUERN_CHECK(a.D % kLaneElements == 0 && a.D >= kLaneElements && a.D <= 256,
              "decode_attention: head_dim is ", a.D, ", expected a multiple of 8 up to 256");
  QUERN_CHECK(a.Hk > 0 && a.H % a.Hk == 0, "decode_attention: ", a.H, " heads and ", a.Hk,
              " kv heads, expected a multiple");
  QUERN_CHECK(aligned16({a.k_cache, a.v_cache}),
              "decode_attention: the cache is not aligned to 16 bytes");
  const AttentionWork<T> work{a};
  const int64_t group = a.H / a.Hk;
  if (group == 1) return launch_heads<T, 1>(work, early, stream);
  if (group <= 4) return launch_heads<T, 4>(work, early, stream);
  launch_heads<T, 8>(work, early, stream);
}

template void decode_attention<float>(const DecodeAttention<float>&, Stream, bool);
template void decode_attention<bfloat16>(const DecodeAttention<bfloat16>&, Stream, bool);

}  // namespace quern::kernels::cuda
