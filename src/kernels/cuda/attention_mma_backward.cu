// Flash attention, backward, by the tensor cores of compute capability 8.0 and later:
// FlashAttention-2 (Dao, 2023), algorithm 2. P is recomputed from logsumexp, tile by tile. With
// delta_i = dO_i . O_i, dP = dO V^T and dS = P (dP - delta):
//   dV = P^T dO,   dK = scale dS^T Q,   dQ = scale dS K.
// One kernel walks over queries for a tile of keys (dK, dV), one over keys for a tile of queries
// (dQ): seven products instead of five, but every element is written once, by one block, in one
// order, and dQ needs no FP32 buffer. The scores are computed as S^T in the first and as S in the
// second, so that P and dS are operands of the next product where they lie, in registers. Bound by
// mma: 14 Tq Tk D operations a head, half of that when causal.
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_variants.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kBackwardBlocks = 2;  // a multiprocessor, as registers allow
constexpr int kDeltaThreads = 256;
constexpr int kDeltaLanes = 8;  // a row; 16 bytes each cover a head of 64

// delta (B, H, Tq) = sum over D of d_o o. Rows lie heads side by side, as in memory.
__global__ void __launch_bounds__(kDeltaThreads)
    mma_attention_delta_kernel(float* delta, const bfloat16* d_o, const bfloat16* o,
                               const __grid_constant__ AttentionShape s, bool vectors) {
  const int64_t row =
      (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kDeltaLanes;
  const bool exists = row < s.B * s.Tq * s.H;
  const int64_t h = row % s.H;
  const int64_t i = row / s.H % s.Tq;
  const int64_t b = row / s.H / s.Tq;
  float sum = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % kDeltaLanes * 8; exists && d < s.D;
       d += kDeltaLanes * 8) {
    const bfloat16* x = at(d_o, s.do_strides, b, i, h) + d;
    const bfloat16* y = at(o, s.o_strides, b, i, h) + d;
    float a[8], c[8];
    if (vectors) {
      load_vec(a, x);
      load_vec(c, y);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        a[e] = to_float(x[e]);
        c[e] = to_float(y[e]);
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(a[e], c[e], sum);
  }
  sum = warp_reduce<SumOp, kDeltaLanes>(sum, SumOp{});
  if (exists && threadIdx.x % kDeltaLanes == 0) delta[(b * s.H + h) * s.Tq + i] = sum;
}

// logsumexp in units of log2. A query that sees no key has -inf, and its scores are all hidden: any
// finite number does.
__device__ __forceinline__ float log2_sum(float lse) {
  return lse == -INFINITY ? 0.0f : lse * kLog2E;
}

// s, dp -> P, dS, of one element.
__device__ __forceinline__ void recompute(float& s, float& dp, float scale2, float lse2,
                                          float delta) {
  s = exp2_approximate(fmaf(s, scale2, -lse2));
  dp = s * (dp - delta);
}

// Grid: B H ceil(Tq / rows) blocks in TileOrder, the last queries first.
template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads, kBackwardBlocks)
    mma_attention_dq_kernel(bfloat16* dq, const bfloat16* d_o, const float* lse, const float* delta,
                            const bfloat16* q, const bfloat16* k, const bfloat16* v,
                            const __grid_constant__ AttentionShape s, bool vectors) {
  constexpr AttentionTile tile = kMmaQueryTiles[kTile];
  constexpr int kD = tile.head_dim;
  constexpr int kWarpRows = tile.rows / kMmaWarps;
  constexpr int kM = kWarpRows / kMmaRowsPerFragment;
  constexpr int kN = tile.columns / 8;
  using Rows = SharedRows<kD>;
  constexpr int kRowBytes = tile.rows * Rows::kBytes;        // Q or dO
  constexpr int kColumnBytes = tile.columns * Rows::kBytes;  // K or V; a stage is both
  extern __shared__ uint4 mma_shared[];
  const uint32_t q_tile = shared_address(mma_shared);
  const uint32_t stages = q_tile + 2 * kRowBytes;
  const uint32_t q_rows = q_tile + warp_index() * kWarpRows * Rows::kBytes;

  const int Tq = static_cast<int>(s.Tq), Tk = static_cast<int>(s.Tk), D = static_cast<int>(s.D);
  const int heads = static_cast<int>(s.H);
  const int tiles = static_cast<int>(ceil_div(Tq, tile.rows));
  const TileOrder order(s.B * s.H, tiles);
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
    load_rows<tile.rows, kD>(q_tile + kRowBytes, at(d_o, s.do_strides, b, q0, h), s.do_strides[1],
                             Tq - q0, D, vectors);
    load_stage(0);
  }
  float lse2[kM][2], delta_row[kM][2];
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = warp_q0 + 8 * r + lane_row();
    lse2[r / 2][r % 2] = i < Tq ? log2_sum(lse[order.head * s.Tq + i]) : 0.0f;
    delta_row[r / 2][r % 2] = i < Tq ? delta[order.head * s.Tq + i] : 0.0f;
  }

  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  const RowsInShared<kD> q_fragments{q_rows + Rows::square_lane()};
  const RowsInShared<kD> do_fragments{q_fragments.address + kRowBytes};
  float out[kM][kD / 8][4] = {};
  for (int j = 0; j < key_tiles; ++j) {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
    if (j + 1 < key_tiles) load_stage(j + 1);
    const Visible visible = visible_keys(s, warp_q0, j * tile.columns);
    if (visible.none(kWarpRows, tile.columns)) continue;

    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    float p[kM][kN][4], ds[kM][kN][4];
    multiply_transposed<kD>(p, q_fragments, stage + Rows::column_lane());
    if (!visible.all(kWarpRows, tile.columns)) hide_scores(p, visible);
    multiply_transposed<kD>(ds, do_fragments, stage + kColumnBytes + Rows::column_lane());
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          recompute(p[m][n][i], ds[m][n][i], scale2, lse2[m][i / 2], delta_row[m][i / 2]);
        }
      }
    }
    multiply_add<kD, kD>(out, ds, stage + Rows::square_lane());
  }

  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = scale2 * kLn2;
  store_rows<kD, kD>(at(dq, s.dq_strides, b, warp_q0, h), s.dq_strides[1], Tq - warp_q0, 0, D, out,
                     factor, q_fragments.address - Rows::square_lane(), vectors);
}

// Starts to copy logsumexp and delta of kColumns queries into the padding of their rows of Q. Zeros
// beyond `rows`.
template <int kColumns, int kD>
__device__ __forceinline__ void load_statistics(uint32_t q_tile, const float* lse,
                                                const float* delta, int rows) {
  const int column = reread_thread();
  if (column >= kColumns) return;
  const uint32_t padding = q_tile + column * SharedRows<kD>::kBytes + SharedRows<kD>::kPadding;
  copy_async<4>(padding, lse + column, column < rows);
  copy_async<4>(padding + 4, delta + column, column < rows);
}

// Grid: B Hk ceil(Tk / rows) ceil(head_dim / features) blocks in TileOrder; causal, the first keys
// have most queries. Rows are keys here, columns queries. The query heads that share the key head
// are summed in order. A head too wide for the registers has its features shared out over blocks,
// each of which computes all scores.
template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads, kBackwardBlocks)
    mma_attention_dkdv_kernel(bfloat16* dk, bfloat16* dv, const bfloat16* d_o, const float* lse,
                              const float* delta, const bfloat16* q, const bfloat16* k,
                              const bfloat16* v, const __grid_constant__ AttentionShape s,
                              bool vectors) {
  constexpr AttentionTile tile = kMmaKeyTiles[kTile];
  constexpr int kD = tile.head_dim;
  constexpr int kF = mma_key_features(tile);
  constexpr int kParts = kD / kF;
  constexpr int kWarpRows = tile.rows / kMmaWarps;
  constexpr int kM = kWarpRows / kMmaRowsPerFragment;
  constexpr int kN = tile.columns / 8;
  using Rows = SharedRows<kD>;
  constexpr int kRowBytes = tile.rows * Rows::kBytes;        // K or V
  constexpr int kColumnBytes = tile.columns * Rows::kBytes;  // Q or dO; a stage is both
  extern __shared__ uint4 mma_shared[];
  const uint32_t k_tile = shared_address(mma_shared);
  const uint32_t stages = k_tile + 2 * kRowBytes;
  const uint32_t k_rows = k_tile + warp_index() * kWarpRows * Rows::kBytes;

  const int Tq = static_cast<int>(s.Tq), Tk = static_cast<int>(s.Tk), D = static_cast<int>(s.D);
  const int kv_heads = static_cast<int>(s.Hk);
  const int group = static_cast<int>(s.H / s.Hk);
  const int tiles = static_cast<int>(ceil_div(Tk, tile.rows));
  const TileOrder order(s.B * s.Hk, tiles * kParts);
  const int b = order.head / kv_heads;
  const int kv_head = order.head % kv_heads;
  const int k0 = order.tile / kParts * tile.rows;
  const int first_feature = order.tile % kParts * kF;
  const int warp_k0 = k0 + warp_index() * kWarpRows;

  // Tile j is tile j % query_tiles of query head kv_head group + j / query_tiles.
  const int first_query = s.causal ? max(k0 + Tq - Tk, 0) : 0;  // the first that sees key k0
  const int q_begin = first_query / tile.columns * tile.columns;
  const int query_tiles = q_begin < Tq ? (Tq - q_begin + tile.columns - 1) / tile.columns : 0;
  int next_head = kv_head * group, next_q0 = q_begin;
  const auto load_next = [&](int j) {
    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    const int64_t row = (static_cast<int64_t>(b) * s.H + next_head) * s.Tq + next_q0;
    load_rows<tile.columns, kD>(stage, at(q, s.q_strides, b, next_q0, next_head), s.q_strides[1],
                                Tq - next_q0, D, vectors);
    load_rows<tile.columns, kD>(stage + kColumnBytes, at(d_o, s.do_strides, b, next_q0, next_head),
                                s.do_strides[1], Tq - next_q0, D, vectors);
    load_statistics<tile.columns, kD>(stage, lse + row, delta + row, Tq - next_q0);
    next_q0 += tile.columns;
    if (next_q0 >= Tq) {
      next_q0 = q_begin;
      ++next_head;
    }
  };

  const int all_tiles = group * query_tiles;
  if (all_tiles > 0) {
    load_rows<tile.rows, kD>(k_tile, at(k, s.k_strides, b, k0, kv_head), s.k_strides[1], Tk - k0, D,
                             vectors);
    load_rows<tile.rows, kD>(k_tile + kRowBytes, at(v, s.v_strides, b, k0, kv_head), s.v_strides[1],
                             Tk - k0, D, vectors);
    load_next(0);
  }

  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  const RowsInShared<kD> k_fragments{k_rows + Rows::square_lane()};
  const RowsInShared<kD> v_fragments{k_fragments.address + kRowBytes};
  float dk_out[kM][kF / 8][4] = {};
  float dv_out[kM][kF / 8][4] = {};
  int q0 = q_begin;
  for (int j = 0; j < all_tiles; ++j) {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
    if (j + 1 < all_tiles) load_next(j + 1);
    const Visible visible = visible_queries(s, warp_k0, q0);
    q0 = q0 + tile.columns < Tq ? q0 + tile.columns : q_begin;
    if (visible.none(kWarpRows, tile.columns)) continue;

    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    float p[kM][kN][4], ds[kM][kN][4];
    multiply_transposed<kD>(p, k_fragments, stage + Rows::column_lane());
    if (!visible.all(kWarpRows, tile.columns)) hide_scores(p, visible);
    multiply_transposed<kD>(ds, v_fragments, stage + kColumnBytes + Rows::column_lane());
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * n + lane_column() + c;
        const float2 lse_delta = load_shared_float2(stage + column * Rows::kBytes + Rows::kPadding);
        const float lse2 = log2_sum(lse_delta.x);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int i = c; i < 4; i += 2) {
            recompute(p[m][n][i], ds[m][n][i], scale2, lse2, lse_delta.y);
          }
        }
      }
    }
    const uint32_t features = first_feature * 2 + Rows::square_lane();
    multiply_add<kD, kF>(dv_out, p, stage + kColumnBytes + features);
    multiply_add<kD, kF>(dk_out, ds, stage + features);
  }

  float one[kM][2], factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    one[m][0] = one[m][1] = 1.0f;
    factor[m][0] = factor[m][1] = scale2 * kLn2;
  }
  store_rows<kD, kF>(at(dv, s.dv_strides, b, warp_k0, kv_head), s.dv_strides[1], Tk - warp_k0,
                     first_feature, D, dv_out, one, v_fragments.address - Rows::square_lane(),
                     vectors);
  store_rows<kD, kF>(at(dk, s.dk_strides, b, warp_k0, kv_head), s.dk_strides[1], Tk - warp_k0,
                     first_feature, D, dk_out, factor, k_fragments.address - Rows::square_lane(),
                     vectors);
}

}  // namespace

void mma_attention_backward_within(int64_t shared_bytes, bfloat16* dq, bfloat16* dk, bfloat16* dv,
                                   const bfloat16* d_o, const bfloat16* o, const float* lse,
                                   const bfloat16* q, const bfloat16* k, const bfloat16* v,
                                   const AttentionShape& s, float* delta, Stream stream) {
  check_mma_attention(s);
  const bool delta_vectors = rows_aligned(d_o, s.do_strides) && rows_aligned(o, s.o_strides);
  launch(mma_attention_delta_kernel,
         one_block_each(ceil_div(s.B * s.Tq * s.H, kDeltaThreads / kDeltaLanes)),
         dim3(kDeltaThreads), 0, stream, delta, d_o, o, s, delta_vectors);

  const bool vectors = rows_aligned(dq, s.dq_strides) && rows_aligned(dk, s.dk_strides) &&
                       rows_aligned(dv, s.dv_strides) && rows_aligned(d_o, s.do_strides) &&
                       rows_aligned(q, s.q_strides) && rows_aligned(k, s.k_strides) &&
                       rows_aligned(v, s.v_strides);
  const int key_index = choose_tile(kMmaKeyTiles, mma_backward_shared_bytes, s.D, shared_bytes);
  with_tile<kMmaKeyTileCount>(key_index, [&](auto tile) {
    const AttentionTile& t = kMmaKeyTiles[key_index];
    const int64_t parts = t.head_dim / mma_key_features(t);
    launch(mma_attention_dkdv_kernel<tile>,
           one_block_each(s.B * s.Hk * ceil_div(s.Tk, t.rows) * parts), dim3(kAttentionThreads),
           static_cast<size_t>(mma_backward_shared_bytes(t)), stream, dk, dv, d_o, lse, delta, q, k,
           v, s, vectors);
  });
  const int query_index = choose_tile(kMmaQueryTiles, mma_backward_shared_bytes, s.D, shared_bytes);
  with_tile<kMmaQueryTileCount>(query_index, [&](auto tile) {
    const AttentionTile& t = kMmaQueryTiles[query_index];
    launch(mma_attention_dq_kernel<tile>, one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)),
           dim3(kAttentionThreads), static_cast<size_t>(mma_backward_shared_bytes(t)), stream, dq,
           d_o, lse, delta, q, k, v, s, vectors);
  });
}

void mma_attention_backward(bfloat16* dq, bfloat16* dk, bfloat16* dv, const bfloat16* d_o,
                            const bfloat16* o, const float* lse, const bfloat16* q,
                            const bfloat16* k, const bfloat16* v, const AttentionShape& s,
                            float* delta, Stream stream) {
  mma_attention_backward_within(device_traits().shared_bytes_per_block, dq, dk, dv, d_o, o, lse, q,
                                k, v, s, delta, stream);
}

}  // namespace quern::kernels::cuda
