// Flash attention, forward, by the tensor cores of compute capability 8.0 and later: o (B, Tq, H,
// D) = softmax(scale q k^T) v (FlashAttention-2: Dao, 2023, algorithm 1). A block of 4 warps has a
// tile of queries, each warp its own rows. It walks over the keys while K and V of the next tile
// are copied. S and P stay in registers: the accumulators of Q K^T are the operand of P V. Bound by
// mma: 4 Tq Tk D operations a head, half of that when causal.
#include <type_traits>

#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/mma/attention_mma.cuh"
#include "kernels/cuda/attention/mma/attention_mma_softmax.cuh"

namespace quern::kernels::cuda {

namespace {

// Grid: B H ceil(Tq / rows) blocks in TileOrder, the last queries first.
template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads, mma_forward_blocks(kMmaForwardTiles[kTile]))
    mma_attention_forward_kernel(bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
                                 const bfloat16* v, const __grid_constant__ AttentionShape s,
                                 bool vectors) {
  constexpr AttentionTile tile = kMmaForwardTiles[kTile];
  constexpr int kD = tile.head_dim;
  constexpr int kWarpRows = tile.rows / kMmaWarps;
  constexpr int kM = kWarpRows / kMmaRowsPerFragment;
  using Rows = SharedRows<kD>;
  constexpr int kColumnBytes = tile.columns * Rows::kBytes;  // K or V; a stage is both
  extern __shared__ uint4 mma_shared[];
  const uint32_t q_tile = shared_address(mma_shared);
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
  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  if (key_tiles > 0) {
    load_rows<tile.rows, kD>(q_tile, at(q, s.q_strides, b, q0, h), s.q_strides[1], Tq - q0, D,
                             vectors);
    load_stage(0);
  }
  constexpr bool kQueriesInRegisters = kD <= kMmaQueryWidth;
  std::conditional_t<kQueriesInRegisters, RowsInRegisters<kM, kD>, RowsInShared<kD>> queries;
  if constexpr (kQueriesInRegisters) {
    wait_for_copies();
    __syncthreads();
    queries.fill(RowsInShared<kD>{q_rows + Rows::square_lane()});
  } else {
    queries.address = q_rows + Rows::square_lane();
  }

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
      float scores[kM][tile.columns / 8][4], weights[kM][2], rescale[kM][2];
      multiply_transposed<kD>(scores, queries, stage + Rows::column_lane());
      if (!visible.all(kWarpRows, tile.columns)) hide_scores(scores, visible);
      if (j == 0 || careful) {
        softmax.raise(scores, scale2, j == 0, rescale);
        if (j > 0) scale_rows(out, rescale);
      }
      softmax.exponentiate(scores, scale2, weights);
      multiply_add<kD, kD, tile.columns / 16>(out, ScoresAsRows{scores},
                                              stage + kColumnBytes + Rows::square_lane());
      if (softmax.add(weights, rescale)) scale_rows(out, rescale);
    }
    if (careful || !__syncthreads_or(softmax.overflow)) break;
    load_stage(0);
  }

  float inverse[kM][2];
  softmax.finish(inverse);
  store_rows<kD, kD>(at(o, s.o_strides, b, warp_q0, h), s.o_strides[1], Tq - warp_q0, 0, D, out,
                     inverse, q_rows, vectors);
  if (lane_column() != 0) return;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = warp_q0 + 8 * r + lane_row();
    if (i < Tq) lse[order.head * s.Tq + i] = softmax.logsumexp(r / 2, r % 2);
  }
}

}  // namespace

void mma_attention_forward_within(int64_t shared_bytes, bfloat16* o, float* lse, const bfloat16* q,
                                  const bfloat16* k, const bfloat16* v, const AttentionShape& s,
                                  Stream stream) {
  check_mma_attention(s);
  const bool vectors = rows_aligned(o, s.o_strides) && rows_aligned(q, s.q_strides) &&
                       rows_aligned(k, s.k_strides) && rows_aligned(v, s.v_strides);
  const int index = choose_tile(kMmaForwardTiles, mma_forward_shared_bytes, s.D, shared_bytes);
  with_tile<kMmaForwardTileCount>(index, [&](auto tile) {
    const AttentionTile& t = kMmaForwardTiles[index];
    launch(mma_attention_forward_kernel<tile>, one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)),
           dim3(kAttentionThreads), static_cast<size_t>(mma_forward_shared_bytes(t)), stream, o,
           lse, q, k, v, s, vectors);
  });
}

void mma_attention_forward(bfloat16* o, float* lse, const bfloat16* q, const bfloat16* k,
                           const bfloat16* v, const AttentionShape& s, Stream stream) {
  mma_attention_forward_within(device_traits().shared_bytes_per_block, o, lse, q, k, v, s, stream);
}

}  // namespace quern::kernels::cuda
