// How decode_token.cu divides its threads, its shared memory and the memory through which its
// blocks exchange values.
#pragma once

#include <algorithm>

#include "kernels/cuda/decode/decode_attention_part.cuh"
#include "kernels/cuda/decode/decode_exchange.cuh"
#include "kernels/cuda/decode/decode_weights.cuh"
#include "kernels/cuda/primitives/named_barrier.cuh"

namespace quern::kernels::cuda {

// The threads that compute, and those that fetch weights.
inline constexpr int kTokenWarps = kLinearWarps, kTokenThreads = kTokenWarps * kWarpSize;
inline constexpr int kFetchThreads = kFetchWarps * kWarpSize;
// Registers a thread, of the 168 that each has at first. Spilled ones would be read through L2,
// which the weights keep busy.
inline constexpr int kTokenRegisters = 232, kFetchRegisters = 40;
inline constexpr int kTokenParts = kTokenWarps / kPartWarps;  // of the attention, side by side

// Brings the line of `p` into L2.
__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

// Barriers of the threads that compute, and of each part of the attention.
using TokenBarrier = NamedBarriers<1, kTokenThreads>;
using PartBarriers = NamedBarriers<kTokenParts, kPartThreads, TokenBarrier>;

__host__ __device__ inline int part_heads(const DecodeToken& t) {
  return t.H == t.Hk ? 1 : kMostHeads;
}
// The most shares of the attention that a part of `blocks` blocks has.
inline int shares_of_part(const DecodeToken& t, int blocks) {
  const int64_t units = t.B * t.Hk * ceil_div(t.H / t.Hk, part_heads(t));
  return static_cast<int>(ceil_div(units * kHeadParts, int64_t{blocks} * kTokenParts));
}

// Offsets, in words, at which each kind of value begins; rows are consecutive.
struct ExchangePlan {
  int64_t qkv = 0, states = 0, attended = 0, middle = 0, hidden = 0, stream = 0, words = 0;
};

// The start of `exchange`: the number of ended calls, and of this call's ended blocks.
struct ExchangeHead {
  uint32_t calls, done;
};
inline constexpr int64_t kHeadWords = 4;

inline ExchangePlan plan_exchange(const DecodeToken& t) {
  ExchangePlan plan;
  const auto take = [&](int64_t words) {
    const int64_t begin = plan.words;
    plan.words += ceil_div(words, 4) * 4;
    return begin;
  };
  const int64_t stream = t.B * t.C / (t.fp32_stream ? 1 : kWordElements<bfloat16>);
  plan.qkv = take(t.B * (t.H + 2 * t.Hk) * t.D / kWordElements<bfloat16>);
  plan.states = take(t.B * t.H * kHeadParts * (t.D + 2));
  plan.attended = take(t.B * t.H * t.D / kWordElements<bfloat16>);
  plan.middle = take(stream);
  plan.hidden = take(t.B * t.F / kWordElements<bfloat16>);
  plan.stream = take(stream);
  return plan;
}

// Offsets into a block's dynamic shared memory, in bytes. The attention uses x's.
struct TokenMemory {
  int blocks = 0, shares = 0, sums = 0, x = 0, ring = 0, bytes = 0;
};

inline TokenMemory plan_memory(const DecodeToken& t, int blocks, int ring_bytes) {
  TokenMemory memory;
  const auto take = [&](int64_t bytes) {
    const int begin = memory.bytes;
    memory.bytes += static_cast<int>(ceil_div(bytes, 128) * 128);
    return begin;
  };
  int64_t sums = 0, x = 0;
  for (int i = 0; i < kTokenProducts; ++i) {
    // The last block has as many units as any.
    const TokenLinear linear =
        token_linear(t, static_cast<TokenProduct>(i)).of_block(blocks - 1, blocks);
    sums = std::max(sums, int64_t{linear.pairs()} * linear.parts * t.B * kPair);
    x = std::max(x, int64_t{linear.steps} * kStepBytes * t.B);
  }
  const int64_t attention = kTokenParts * attention_memory_floats(part_heads(t), t.D);
  memory.blocks = take(t.layers * static_cast<int64_t>(sizeof(DecodeBlock)));
  memory.shares =
      take(kTokenParts * shares_of_part(t, blocks) * static_cast<int64_t>(sizeof(AttentionShare)));
  memory.sums = take(sums * static_cast<int64_t>(sizeof(float)));
  memory.x = take(std::max(x, attention * static_cast<int64_t>(sizeof(float))));
  memory.ring = take(ring_bytes);
  return memory;
}

}  // namespace quern::kernels::cuda
