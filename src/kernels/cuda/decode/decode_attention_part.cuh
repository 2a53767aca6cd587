// Attention over a key/value cache for one new token, shared by decode_attention.cu and
// decode_token.cu. A head's keys are divided among kHeadParts parts of kPartWarps warps each. The
// states of warps, then of parts, are merged in their order. Both kernels divide alike, so that
// they give the same bits.
#pragma once

#include "kernels/cuda/decode/decode_keys.cuh"

namespace quern::kernels::cuda {

inline constexpr int kMostHeads = 4;  // query heads of a part where several share a kv head

// Calls f<kHeads, kLanes>() with the most query heads of a part and the lanes that share a key.
// Both kernels use one rule, since the order of sums follows from it.
#pragma nv_exec_check_disable
template <class T, class F>
__host__ __device__ inline void for_attention(const T& sizes, F f) {
  const auto heads = [&]<int kHeads>() {
    if (sizes.D <= 64) {
      f.template operator()<kHeads, 8>();
    } else if (sizes.D <= 128) {
      f.template operator()<kHeads, 16>();
    } else {
      f.template operator()<kHeads, 32>();
    }
  };
  sizes.H == sizes.Hk ? heads.template operator()<1>() : heads.template operator()<kMostHeads>();
}

// Shared memory of a part: the queries, and the states (max, sum, D sums) of each head by warp.
struct AttentionMemory {
  float *q, *warps;
  int heads, width;  // width: of a state

  __device__ AttentionMemory(float* memory, int heads, int D)
      : q(memory), warps(memory + heads * D), heads(heads), width(D + 2) {}
};
__host__ __device__ inline int64_t attention_memory_floats(int64_t heads, int64_t D) {
  return heads * D + kPartWarps * heads * (D + 2);
}

// Merges kParts states of a head in their order: the maximum, the sum of all weights, and two of
// the weighted sums. load(i, which) returns these of state i (which = 0, 1, 2, 3). All loads are
// in flight before the first is used.
template <int kParts>
struct MergedState {
  float max = -INFINITY, sum = 0.0f, values[2] = {};

  template <class Load>
  __device__ __forceinline__ MergedState(int parts, const Load& load) {
    float maxima[kParts], sums[kParts], loaded[kParts][2];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const bool there = i < parts;
      maxima[i] = there ? load(i, 0) : -INFINITY;
      sums[i] = there ? load(i, 1) : 0.0f;
      loaded[i][0] = there ? load(i, 2) : 0.0f;
      loaded[i][1] = there ? load(i, 3) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i) max = fmaxf(max, maxima[i]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float factor = rescale(maxima[i], max);
      sum = fmaf(sums[i], factor, sum);
      values[0] = fmaf(loaded[i][0], factor, values[0]);
      values[1] = fmaf(loaded[i][1], factor, values[1]);
    }
  }
  __device__ __forceinline__ float quotient(int i) const {
    return __fdividef(values[i], sum);
  }
};

// The work of one part: query heads [head, head + heads) of row b, which belong to kv head kv, and
// share number `rank` of the keys, of kHeadParts shares or one.
struct AttentionShare {
  int b = 0, kv = 0, head = 0, heads = 0, rank = 0;
  bool whole = false;  // one share
  int position = 0;    // of the new token; -1 for an inactive row (decode_token.cu)

  AttentionShare() = default;
  // Unit `unit` of all rows' kv heads and, within those, groups of at most most_heads query heads.
  __device__ __forceinline__ AttentionShare(int unit, int rank, int H, int Hk, int most_heads)
      : rank(rank) {
    const int group = H / Hk, groups = (group + most_heads - 1) / most_heads;
    const int first = unit % groups * most_heads;
    kv = unit / groups % Hk;
    b = unit / groups / Hk;
    head = kv * group + first;
    heads = min(most_heads, group - first);
  }
};

// A part at work. Its constructor runs before the token is there, and starts to load the earlier
// keys; `run` follows.
template <class T, int kHeads, int kLanes>
class AttentionPart {
 public:
  static constexpr int kPairs = kLanes / 8;  // a lane's in a head
  using Head = TokenHead<T, kPairs>;

  __device__ __forceinline__ AttentionPart(const DecodeAttention<T>& a, const AttentionShare& share)
      : a_(a), share_(share) {
    const int D = static_cast<int>(a.D), half = D / 2;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int keys = share.position + 1;
    const int each = share.whole ? keys : (keys + kHeadParts - 1) / kHeadParts;
    const int begin = min(keys, share.rank * each), end = min(keys, begin + each);
    const int64_t cache = (int64_t{share.b} * a.capacity * a.Hk + share.kv) * D;
    const int element = lane % kLanes * kLaneElements;
    reader_ = {a.k_cache + cache + element,
               a.v_cache + cache + element,
               a.Hk * D,
               begin,
               end,
               element < D};
    reader_.load(reader_.first(), 0, min(end, share.position), true);
    at_ = cache + int64_t{share.position} * a.Hk * D;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      cos_[j] = i < half ? __ldg(a.cos + share.position * int64_t{half} + i) : 0.0f;
      sin_[j] = i < half ? __ldg(a.sin + share.position * int64_t{half} + i) : 0.0f;
    }
  }

  // Writes each warp's state of each head to memory.warps. The part that owns the new position also
  // writes the new key and value to the cache. load(head, i): a warp's elements of head i of the
  // row's q, k and v (H + 2 Hk, D). sync(): a barrier of the part's threads.
  template <class Load, class Sync>
  __device__ __forceinline__ void run(const AttentionMemory& memory, Load load, Sync sync) {
    const int D = static_cast<int>(a_.D), H = static_cast<int>(a_.H), Hk = static_cast<int>(a_.Hk);
    const int warp = part_warp(), lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const bool owner = reader_.begin <= share_.position && share_.position < reader_.end;
    const float scale = 1.44269504f * rsqrtf(static_cast<float>(D));
#pragma unroll 1
    for (int i = warp; i < kHeads + (owner ? 2 : 0); i += kPartWarps) {
      if (share_.heads <= i && i < kHeads) {
        for (int d = lane; d < D; d += kWarpSize) memory.q[i * D + d] = 0.0f;
        continue;
      }
      Head head;
      load(head, i < kHeads ? share_.head + i : H + (i - kHeads) * Hk + share_.kv);
      if (i <= kHeads) {
        head.normalize(i < kHeads ? a_.q_norm : a_.k_norm, a_);
        head.rotate(cos_, sin_);
      }
      if (i < kHeads) {
        head.store(memory.q + i * D, scale, D);
      } else {
        head.store((i == kHeads ? a_.k_cache : a_.v_cache) + at_, 1.0f, D);
      }
    }
    sync();
    Softmax<kHeads> softmax;
    attend(softmax, memory.q, reader_, share_.position, D);
    merge_lanes<kHeads, kLanes>(softmax);
    const int element = lane % kLanes * kLaneElements;
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
    sync();
  }

 private:
  const DecodeAttention<T>& a_;
  const AttentionShare& share_;
  KeyReader<T, kHeads, kLanes> reader_;
  int64_t at_;  // of the new key
  float cos_[kPairs], sin_[kPairs];
};

// Elements at and at + 1 (at is even) of head h's state, merged over the part's warps.
__device__ __forceinline__ void part_state(float (&x)[2], const AttentionMemory& memory, int h,
                                           int at) {
  const MergedState<kPartWarps> merged(kPartWarps, [&](int warp, int which) {
    const float* const state = memory.warps + (warp * memory.heads + h) * memory.width;
    return state[which < 2 ? which : at + which - 2];
  });
  x[0] = at == 0 ? merged.max : merged.values[0];
  x[1] = at == 0 ? merged.sum : merged.values[1];
}

}  // namespace quern::kernels::cuda
