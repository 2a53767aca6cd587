// Flash attention of FP32 tensors, forward, by tensor cores of compute capability 8.0 and later: o
// (B, Tq, H, D) = softmax(scale q k^T) v (FlashAttention-2: Dao, 2023, algorithm 1). Each of a
// block's 4 warps has rows of its tile of queries and walks over the keys while the next K and V
// are copied. S and P stay in registers: the accumulators of Q K^T are the operand of P V. Bound by
// mma: 4 Tq Tk D operations a head, half of that when causal, three times as many in split mode.
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/mma/attention_mma_softmax.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.cuh"

namespace quern::kernels::cuda {

namespace {

template <bool kSplit>
constexpr AttentionTile forward_tile(int index) {
  return kSplit ? kSplitForwardTiles[index] : kTf32ForwardTiles[index];
}

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
  constexpr int kN = tile.columns / 8;
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
  const auto queries =
      hold_queries<kSplit, kM>(RowsInShared<kSplit, kD>{q_rows + Rows::row_lane()});
  OnlineSoftmax<kM> softmax;
  float out[kM][kD / 8][4];
#pragma unroll 1
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool careful = attempt > 0;
    softmax = {};
    clear(out);
    for (int j = 0; j < key_tiles; ++j) {
      wait_for_copies();
      __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
      if (j + 1 < key_tiles) load_stage(j + 1);
      const Visible visible = visible_keys(s, warp_q0, j * tile.columns);
      if (visible.none(kWarpRows, tile.columns)) continue;

      const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
      float scores[kM][kN][4], weights[kM][2], rescale[kM][2];
      multiply_transposed<kSplit, kD, kD / 8>(scores, queries, stage + Rows::column_lane());
      if (!visible.all(kWarpRows, tile.columns)) hide_scores(scores, visible);
      if (j == 0 || careful) {
        softmax.raise(scores, scale2, j == 0, rescale);
        if (j > 0) scale_rows(out, rescale);
      }
      softmax.exponentiate(scores, scale2, weights);
      multiply_add<kSplit, kD>(out, ScoresAsRows<kSplit, kM, kN>(scores), stage + kColumnBytes);
      if (softmax.add(weights, rescale)) scale_rows(out, rescale);
    }
    if (careful || !__syncthreads_or(softmax.overflow)) break;
    load_stage(0);
  }

  float inverse[kM][2];
  softmax.finish(inverse);
  scale_rows(out, inverse);
  store_rows<kSplit, kD>(at(o, s.o_strides, b, warp_q0, h), s.o_strides[1], Tq - warp_q0, D, out,
                         vectors);
  if (lane_column() != 0) return;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = warp_q0 + 8 * r + lane_row();
    if (i < Tq) lse[order.head * s.Tq + i] = softmax.logsumexp(r / 2, r % 2);
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
  tf32_attention_forward_within(limits_of(traits_of(stream)), o, lse, q, k, v, s, stream);
}

}  // namespace quern::kernels::cuda
