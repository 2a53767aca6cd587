// Attention of one new token a row over its cache: y (B, H, D). Bound by reading the cache. A
// cluster of blocks shares the keys of a row's kv head; every warp has several keys and values
// in flight. The blocks' partial softmaxes are merged through their shared memory, in block order.
#include "kernels/decode_attention.h"

#include "base/error.h"
#include "kernels/cuda/decode/decode_attention_part.cuh"
#include "kernels/cuda/primitives/launch_hopper.cuh"

namespace quern::kernels::cuda {

namespace {

__device__ __forceinline__ float load_past_l1(const float* p) {
  return __ldcg(p);
}
__device__ __forceinline__ float load_past_l1(const bfloat16* p) {
  return to_float(bfloat16::from_bits(__ldcg(reinterpret_cast<const unsigned short*>(p))));
}

// Uses few registers, so that its blocks fit beside those of neighbouring kernels. Behind the
// part's memory lie the states that the cluster's blocks send for the heads that this one finishes.
// Block h % blocks finishes head h.
template <class T, int kHeads, int kLanes>
__global__ void __launch_bounds__(kPartThreads, kHeads == 1 ? 4 : 3)
    decode_attention_kernel(const __grid_constant__ DecodeAttention<T> a) {
  extern __shared__ float attention_memory[];
  const int D = static_cast<int>(a.D), thread = static_cast<int>(threadIdx.x);
  const AttentionMemory memory(attention_memory, kHeads, D);
  float* const sent = attention_memory + attention_memory_floats(kHeads, D);
  const int blocks = static_cast<int>(cluster_size());
  AttentionShare share(static_cast<int>(blockIdx.x) / blocks, static_cast<int>(cluster_rank()),
                       static_cast<int>(a.H), static_cast<int>(a.Hk), kHeads);
  share.whole = blocks == 1;
  T* const y = a.y + (int64_t{share.b} * a.H + share.head) * D;
  let_next_start();
  cluster_arrive();
  // Kernels before the previous one wrote the rows.
  const bool active = __ldcg(&a.rows[share.b].active) != 0;
  share.position = active ? __ldcg(&a.rows[share.b].length) : 0;
  using Part = AttentionPart<T, kHeads, kLanes>;
  Part part(a, share);
  wait_for_previous();
  if (!active) {  // all blocks of the cluster agree
    cluster_wait();
    for (int i = thread; share.rank == 0 && i < share.heads * D; i += kPartThreads) {
      y[i] = from_float<T>(0.0f);
    }
    return;
  }

  const T* const token = a.qkv + share.b * (a.H + 2 * a.Hk) * D;
  const auto load = [&](typename Part::Head& head, int number) {
    const T* const x = token + int64_t{number} * D;
    const int half = D / 2, lane = thread % kWarpSize;
#pragma unroll
    for (int j = 0; j < Part::kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      head.x1[j] = i < half ? load_past_l1(x + i) : 0.0f;
      head.x2[j] = i < half ? load_past_l1(x + i + half) : 0.0f;
    }
  };
  part.run(memory, load, [] { __syncthreads(); });
  cluster_wait();  // all blocks have started: their shared memory exists
  const int slots = (share.heads + blocks - 1) / blocks;  // heads that a block finishes
  for (int i = thread; i < share.heads * memory.width / 2; i += kPartThreads) {
    const int h = 2 * i / memory.width, at = 2 * i % memory.width;
    float x[2];
    part_state(x, memory, h, at);
    for (int e = 0; e < 2; ++e) {
      store_in_cluster(sent + (share.rank * slots + h / blocks) * memory.width + at + e,
                       static_cast<uint32_t>(h % blocks), x[e]);
    }
  }
  cluster_arrive();
  cluster_wait();
  for (int h = share.rank; h < share.heads; h += blocks) {
    for (int d = 2 * thread; d < D; d += 2 * kPartThreads) {
      const MergedState<kHeadParts> merged(blocks, [&](int rank, int which) {
        const float* const state = sent + (rank * slots + h / blocks) * memory.width;
        return state[which < 2 ? which : d + which];
      });
      for (int e = 0; e < 2; ++e) y[h * D + d + e] = from_float<T>(merged.quotient(e));
    }
  }
}

template <class T, int kHeads, int kLanes>
void launch_attention(const DecodeAttention<T>& a, bool early, Stream stream) {
  const auto kernel = decode_attention_kernel<T, kHeads, kLanes>;
  const bool hopper = has_hopper_code(kernel);
  const LaunchOptions options{hopper ? kHeadParts : 1, early && hopper};
  const int64_t groups = ceil_div(a.H / a.Hk, kHeads);
  const int64_t floats = attention_memory_floats(kHeads, a.D) + kHeadParts * (a.D + 2);
  launch(options, kernel, one_block_each(a.B * a.Hk * groups * options.cluster), dim3(kPartThreads),
         static_cast<size_t>(floats) * sizeof(float), stream, a);
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
  for_attention(
      a, [&]<int kHeads, int kLanes>() { launch_attention<T, kHeads, kLanes>(a, early, stream); });
}

template decltype(decode_attention<float>) decode_attention<float>;
template decltype(decode_attention<bfloat16>) decode_attention<bfloat16>;

}  // namespace quern::kernels::cuda
