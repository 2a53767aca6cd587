// Flash attention of FP32 tensors, forward, by the tensor cores of compute capability 8.0 and
// later: FlashAttention-2 (Dao, 2023), algorithm 1. A block of 4 warps has a tile of queries, each
// warp its own rows, and walks over the keys; K and V of the next tile are copied meanwhile. S and
// P stay in registers: the accumulators of Q K^T are the operand of P V. Bound by mma: 4 Tq Tk D
// operations a head, half of that when causal, and three times as many in split mode.
#include "kernels/cuda/attention_tf32.cuh"
#include "kernels/cuda/attention_variants.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

template <bool kSplit>
constexpr AttentionTile forward_tile(int index) {
  return kSplit ? kSplitForwardTiles[index] : kTf32ForwardTiles[index];
}

// The online softmax (Milakov and Gimelshein, 2018) of a warp's rows, in units of log2 and with the
// scale folded in: p = 2^(scale2 s - scale2 max). The maximum is let be until a score exceeds it by
// 2^kSlack, since any base gives the same quotient. So the output is rescaled a few times a row,
// and not for every tile.
template <int kM>
struct Tf32Softmax {
  static constexpr float kSlack = 8.0f;
  float max[kM][2];
  float sum[kM][2];  // of this lane's columns only, until `finish`

  __device__ Tf32Softmax() {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      max[r / 2][r % 2] = -INFINITY;
      sum[r / 2][r % 2] = 0.0f;
    }
  }

  // Moves the maximum where these scores exceed it. Returns whether any row of the warp did; then
  // what was summed before has to be multiplied by `rescale`.
  template <int kN>
  __device__ __forceinline__ bool raise(const float (&scores)[kM][kN][4], float scale2,
                                        float (&rescale)[kM][2]) {
    bool raised = false;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int m = r / 2, half = r % 2;
      float highest = max[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      const float excess = (highest - max[m][half]) * scale2;  // inf at first, NaN without keys
      rescale[m][half] = excess > kSlack ? exp2_approximate(-excess) : 1.0f;
      if (excess > kSlack) max[m][half] = highest;
      raised = raised || excess > kSlack;
    }
    if (!__any_sync(0xffffffffu, raised)) return false;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) sum[r / 2][r % 2] *= rescale[r / 2][r % 2];
    return true;
  }

  // scores -> P, not yet divided by the sum.
  template <int kN>
  __device__ __forceinline__ void exponentiate(float (&scores)[kM][kN][4], float scale2) {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int m = r / 2, half = r % 2;
      const float base = max[m][half] == -INFINITY ? 0.0f : max[m][half] * scale2;
      float tile_sum = 0.0f;  // of its own: fewer roundings of the long sum
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = exp2_approximate(fmaf(scores[m][n][i], scale2, -base));
          tile_sum += scores[m][n][i];
        }
      }
      sum[m][half] += tile_sum;
    }
  }

  // Returns in `inverse` 1 / sum, 0 for a row without keys.
  __device__ __forceinline__ void finish(float (&inverse)[kM][2]) {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const float total = warp_reduce<SumOp, 4>(sum[r / 2][r % 2], SumOp{});
      sum[r / 2][r % 2] = total;
      inverse[r / 2][r % 2] = total == 0.0f ? 0.0f : 1.0f / total;
    }
  }

  __device__ __forceinline__ float logsumexp(int m, int half, float scale2) const {
    return max[m][half] * scale2 * kLn2 + logf(sum[m][half]);
  }
};

// Grid: B H ceil(Tq / rows) blocks in TileOrder, the last queries first.
template <bool kSplit, int kTile>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tf32_attention_forward_kernel(float* o, float* lse, const float* q, const float* k,
                                  const float* v, const __grid_constant__ AttentionShape s,
                                  bool vectors) {
  constexpr AttentionTile tile = forward_tile<kSplit>(kTile);
  constexpr int kD = tile.head_dim;
  constexpr int kWarpRows = tile.rows / kTf32Warps;
  constexpr int kM = kWarpRows / kTf32RowsPerFragment;
  using Rows = FloatRows<kD>;
  constexpr int kColumnBytes = tile.columns * Rows::kBytes;  // K or V; a stage is both
  extern __shared__ uint4 tf32_shared[];
  const uint32_t q_tile = shared_address(tf32_shared);
  const uint32_t q_rows = q_tile + warp_index() * kWarpRows * Rows::kBytes;
  const uint32_t stages = q_tile + tile.rows * Rows::kBytes;

  const int Tq = static_cast<int>(s.Tq), Tk = static_cast<int>(s.Tk), D = static_cast<int>(s.D);
  const int tiles = static_cast<int>(ceil_div(Tq, tile.rows));
  const TileOrder order(s.B * s.H, tiles);
  const int heads = static_cast<int>(s.H);
  const int b = order.head / heads;
  const int h = order.head % heads;
  const int kv_head = h / (heads / static_cast<int>(s.Hk));
  const int q0 = (tiles - 1 - order.tile) * tile.rows;
  const int warp_q0 = q0 + warp_index() * kWarpRows;
  const auto load_stage = [&](int j) {
    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    const int k0 = j * tile.columns;
    load_rows<tile.columns, kD>(stage, at(k, s.k_strides, b, k0, kv_head), s.k_strides[1], Tk - k0,
                                D, vectors);
    load_rows<tile.columns, kD>(stage + kColumnBytes, at(v, s.v_strides, b, k0, kv_head),
                                s.v_strides[1], Tk - k0, D, vectors);
  };

  const int end = max(static_cast<int>(keys_end(s, q0, tile.rows)), 0);
  const int key_tiles = (end + tile.columns - 1) / tile.columns;
  if (key_tiles > 0) {
    load_rows<tile.rows, kD>(q_tile, at(q, s.q_strides, b, q0, h), s.q_strides[1], Tq - q0, D,
                             vectors);
    load_stage(0);
  }

  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  Tf32Softmax<kM> softmax;
  float out[kM][kD / 8][4] = {};
  const auto queries =
      hold_queries<kSplit, kM>(RowsInShared<kSplit, kD>{q_rows + Rows::row_lane()});
  for (int j = 0; j < key_tiles; ++j) {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
    if (j + 1 < key_tiles) load_stage(j + 1);
    const Visible visible = visible_keys(s, warp_q0, j * tile.columns);
    if (visible.none(kWarpRows, tile.columns)) continue;

    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    float scores[kM][tile.columns / 8][4];
    multiply_transposed<kSplit, kD, kD / 8>(scores, queries, stage + Rows::column_lane());
    if (!visible.all(kWarpRows, tile.columns)) hide_scores(scores, visible);
    float rescale[kM][2];
    if (softmax.raise(scores, scale2, rescale)) {
      for_each_element<kM, kD / 8>([&](int m, int f, int i) { out[m][f][i] *= rescale[m][i / 2]; });
    }
    softmax.exponentiate(scores, scale2);
    multiply_add<kSplit, kD>(out, scores, stage + kColumnBytes);
  }

  float inverse[kM][2];
  softmax.finish(inverse);
  store_rows<kSplit, kD>(at(o, s.o_strides, b, warp_q0, h), s.o_strides[1], Tq - warp_q0, D, out,
                         inverse, vectors);
  if (lane_column() != 0) return;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = warp_q0 + 8 * r + lane_row();
    if (i < Tq) lse[order.head * s.Tq + i] = softmax.logsumexp(r / 2, r % 2, scale2);
  }
}

template <bool kSplit, size_t N>
void forward_with(const AttentionTile (&tiles)[N], const Tf32Limits& limits, float* o, float* lse,
                  const float* q, const float* k, const float* v, const AttentionShape& s,
                  Stream stream) {
  const bool vectors = rows_aligned(o, s.o_strides) && rows_aligned(q, s.q_strides) &&
                       rows_aligned(k, s.k_strides) && rows_aligned(v, s.v_strides);
  const int index =
      choose_tf32_tile(tiles, tf32_forward_shared_bytes, s.D, s.Tq, s.B * s.H, limits);
  with_tile<static_cast<int>(N)>(index, [&](auto tile) {
    const AttentionTile& t = tiles[index];
    launch(tf32_attention_forward_kernel<kSplit, tile>,
           one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)), dim3(kAttentionThreads),
           static_cast<size_t>(tf32_forward_shared_bytes(t)), stream, o, lse, q, k, v, s, vectors);
  });
}

}  // namespace

bool tf32_attention_takes(const AttentionShape& s) {
  constexpr int64_t kLongest = 1 << 30;  // positions are ints, and sums of two
  return s.D <= kTf32WidestHead && s.scale > 0 && s.Tq <= kLongest && s.Tk <= kLongest;
}

void tf32_attention_forward_within(const Tf32Limits& limits, float* o, float* lse, const float* q,
                                   const float* k, const float* v, const AttentionShape& s,
                                   Stream stream) {
  check_mma_attention(s);
  if (s.tf32) {
    forward_with<false>(kTf32ForwardTiles, limits, o, lse, q, k, v, s, stream);
  } else {
    forward_with<true>(kSplitForwardTiles, limits, o, lse, q, k, v, s, stream);
  }
}

void tf32_attention_forward(float* o, float* lse, const float* q, const float* k, const float* v,
                            const AttentionShape& s, Stream stream) {
  tf32_attention_forward_within(device_limits(), o, lse, q, k, v, s, stream);
}

}  // namespace quern::kernels::cuda
