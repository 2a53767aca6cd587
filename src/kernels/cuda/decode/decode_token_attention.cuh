// The attention of decode_token.cu: the parts of decode_attention_part.cuh, which exchange the
// states of their heads as words. Every sum has the order of decode_attention.cu.
#pragma once

#include "kernels/cuda/decode/decode_token_plan.cuh"

namespace quern::kernels::cuda {

__device__ __forceinline__ DecodeAttention<bfloat16> layer_attention(const DecodeToken& t,
                                                                     const DecodeBlock& block) {
  DecodeAttention<bfloat16> a;
  a.B = t.B;
  a.H = t.H;
  a.Hk = t.Hk;
  a.D = t.D;
  a.capacity = t.capacity;
  a.k_cache = block.k_cache;
  a.v_cache = block.v_cache;
  a.cos = t.cos;
  a.sin = t.sin;
  a.q_norm = block.q_norm;
  a.k_norm = block.k_norm;
  a.eps = t.eps;
  return a;
}

// Prefetches a part's first keys and values.
__device__ __forceinline__ void prefetch_keys(const DecodeAttention<bfloat16>& a,
                                              const AttentionShare& share) {
  const int D = static_cast<int>(a.D), each = (share.position + kHeadParts) / kHeadParts;
  const int key = share.rank * each + part_thread() / 2;
  if (part_thread() / 2 >= each || key >= share.position) return;
  const int64_t at = ((int64_t{share.b} * a.capacity + key) * a.Hk + share.kv) * D;
  const bfloat16* const p = (part_thread() % 2 == 0 ? a.k_cache : a.v_cache) + at;
  prefetch(p);
  prefetch(p + D - 1);
}

// This block's share of a layer's attention. Each part has `count` of `shares`, sends the states of
// their heads, and merges some: the part with rank h % kHeadParts merges those of a share's head h.
// Words replace a.y and a.qkv.
template <int kHeads, int kLanes>
__device__ __forceinline__ void attend_parts(const DecodeAttention<bfloat16>& a,
                                             const AttentionShare* shares, int count, float* shared,
                                             Word* words, const ExchangePlan& plan, uint32_t tag) {
  using Part = AttentionPart<bfloat16, kHeads, kLanes>;
  static_assert(kWordElements<bfloat16> == 2);
  const int D = static_cast<int>(a.D), H = static_cast<int>(a.H), Hk = static_cast<int>(a.Hk);
  const int part = static_cast<int>(threadIdx.x) / kPartThreads, half = D / 2, width = D + 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const AttentionMemory memory(shared + part * attention_memory_floats(kHeads, D), kHeads, D);
  const auto state_of = [&](const AttentionShare& share, int h, int rank) {
    return words + plan.states + ((share.b * H + share.head + h) * kHeadParts + rank) * width;
  };
  shares += part * count;
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    const AttentionShare share = shares[n];
    if (share.heads == 0 || share.position < 0) continue;
    Part work(a, share);
    const Word* const token = words + plan.qkv + share.b * (H + 2 * Hk) * half;
    const auto load = [&](typename Part::Head& head, int number) {
      const Word* const x = token + number * half + lane / 2;
      uint32_t low[Part::kPairs] = {}, high[Part::kPairs] = {};
      bool there;
      do {
        there = true;
#pragma unroll
        for (int j = 0; j < Part::kPairs; ++j) {
          if (lane + j * kWarpSize >= half) continue;
          there = look(x + j * kWarpSize / 2, tag, low[j]) && there;
          there = look(x + (j * kWarpSize + half) / 2, tag, high[j]) && there;
        }
        if (!there) pause();
      } while (!there);
#pragma unroll
      for (int j = 0; j < Part::kPairs; ++j) {  // D / 2 is even: the two have one parity
        head.x1[j] = __uint_as_float(lane % 2 == 0 ? low[j] << 16 : low[j] & 0xffff0000u);
        head.x2[j] = __uint_as_float(lane % 2 == 0 ? high[j] << 16 : high[j] & 0xffff0000u);
      }
    };
    work.run(memory, load, [&] { PartBarriers::sync(part); });
#pragma unroll 1
    for (int i = part_thread(); i < share.heads * width / 2; i += kPartThreads) {
      const int h = kHeads == 1 ? 0 : 2 * i / width, at = 2 * i - h * width;
      float x[2];
      part_state(x, memory, h, at);
      send_two(state_of(share, h, share.rank) + at, __float_as_uint(x[0]), __float_as_uint(x[1]),
               tag);
    }
  }
#pragma unroll 1
  for (int n = 0; n < count; ++n) {
    const AttentionShare share = shares[n];
#pragma unroll 1
    for (int h = share.rank; h < share.heads; h += kHeadParts) {
      const int i = 2 * part_thread();
      if (i >= D) break;
      Word* const y = words + plan.attended + (share.b * H + share.head + h) * half;
      const Word* const state = state_of(share, h, 0);
      if (share.position < 0) {
        send_elements<bfloat16>(y, i, 0.0f, 0.0f, tag);
        continue;
      }
      uint32_t values[kHeadParts][4];  // max, sum, and the sums of elements i and i + 1
      bool there;
      do {
        there = true;
#pragma unroll
        for (int rank = 0; rank < kHeadParts; ++rank) {
          uint32_t(&v)[4] = values[rank];
          there = look_two(state + rank * width, tag, v[0], v[1]) && there;
          there = look_two(state + rank * width + 2 + i, tag, v[2], v[3]) && there;
        }
        if (!there) pause();
      } while (!there);
      const MergedState<kHeadParts> merged(
          kHeadParts, [&](int rank, int which) { return __uint_as_float(values[rank][which]); });
      send_elements<bfloat16>(y, i, merged.quotient(0), merged.quotient(1), tag);
    }
  }
  TokenBarrier::sync();  // x reuses the memory of the parts
}

}  // namespace quern::kernels::cuda
