// Flash attention of FP32 tensors, backward, by the tensor cores of compute capability 8.0 and
// later: FlashAttention-2 (Dao, 2023), algorithm 2. P is recomputed from logsumexp, tile by tile.
// With delta_i = dO_i . O_i, dP = dO V^T and dS = P (dP - delta):
//   dV = P^T dO,   dK = scale dS^T Q,   dQ = scale dS K.
// One kernel walks over queries for a tile of keys (dK, dV: attention_tf32_dkdv.cu), one over keys
// for a tile of queries (dQ, here): seven products instead of five, but every element is written
// once, by one block, in one order. Bound by mma: 14 Tq Tk D operations a head, half of that when
// causal, and three times as many in split mode.
#include "kernels/cuda/attention_tf32.cuh"
#include "kernels/cuda/attention_variants.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kDeltaThreads = 256;
constexpr int kDeltaLanes = 8;  // a row; 16 bytes each

template <bool kSplit>
constexpr AttentionTile query_tile(int index) {
  return kSplit ? kSplitQueryTiles[index] : kTf32QueryTiles[index];
}

// delta (B, H, Tq) = sum over D of d_o o. Rows lie heads side by side, as in memory.
__global__ void __launch_bounds__(kDeltaThreads)
    tf32_attention_delta_kernel(float* delta, const float* d_o, const float* o,
                                const __grid_constant__ AttentionShape s, bool vectors) {
  const int64_t row =
      (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kDeltaLanes;
  const bool exists = row < s.B * s.Tq * s.H;
  const int64_t h = row % s.H;
  const int64_t i = row / s.H % s.Tq;
  const int64_t b = row / s.H / s.Tq;
  float sum = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % kDeltaLanes * 4; exists && d < s.D;
       d += kDeltaLanes * 4) {
    const float* x = at(d_o, s.do_strides, b, i, h) + d;
    const float* y = at(o, s.o_strides, b, i, h) + d;
    float a[4], c[4];
    if (vectors) {
      load_vec(a, x);
      load_vec(c, y);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a[e] = x[e];
        c[e] = y[e];
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sum = fmaf(a[e], c[e], sum);
  }
  sum = warp_reduce<SumOp, kDeltaLanes>(sum, SumOp{});
  if (exists && threadIdx.x % kDeltaLanes == 0) delta[(b * s.H + h) * s.Tq + i] = sum;
}

// Grid: B H ceil(Tq / rows) blocks in TileOrder, the last queries first.
template <bool kSplit, int kTile>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tf32_attention_dq_kernel(float* dq, const float* d_o, const float* lse, const float* delta,
                             const float* q, const float* k, const float* v,
                             const __grid_constant__ AttentionShape s, bool vectors) {
  constexpr AttentionTile tile = query_tile<kSplit>(kTile);
  constexpr int kD = tile.head_dim;
  constexpr int kWarpRows = tile.rows / kTf32Warps;
  constexpr int kM = kWarpRows / kTf32RowsPerFragment;
  constexpr int kN = tile.columns / 8;
  using Rows = FloatRows<kD>;
  constexpr int kRowBytes = tile.rows * Rows::kBytes;        // Q or dO
  constexpr int kColumnBytes = tile.columns * Rows::kBytes;  // K or V; a stage is both
  extern __shared__ uint4 tf32_shared[];
  const uint32_t q_tile = shared_address(tf32_shared);
  const uint32_t q_rows = q_tile + warp_index() * kWarpRows * Rows::kBytes;
  const uint32_t stages = q_tile + 2 * kRowBytes;

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
  const RowsInShared<kSplit, kD> q_in_shared{q_rows + Rows::row_lane()};
  const RowsInShared<kSplit, kD> output_gradients{q_in_shared.address + kRowBytes};
  const auto queries = hold_queries<kSplit, kM>(q_in_shared);
  float out[kM][kD / 8][4] = {};
  for (int j = 0; j < key_tiles; ++j) {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
    if (j + 1 < key_tiles) load_stage(j + 1);
    const Visible visible = visible_keys(s, warp_q0, j * tile.columns);
    if (visible.none(kWarpRows, tile.columns)) continue;

    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    float p[kM][kN][4], ds[kM][kN][4];
    multiply_transposed<kSplit, kD, kD / 8>(p, queries, stage + Rows::column_lane());
    if (!visible.all(kWarpRows, tile.columns)) hide_scores(p, visible);
    multiply_transposed<kSplit, kD, kD / 8>(ds, output_gradients,
                                            stage + kColumnBytes + Rows::column_lane());
    for_each_element<kM, kN>([&](int m, int n, int i) {
      ds[m][n][i] =
          recompute(p[m][n][i], scale2, lse2[m][i / 2]) * (ds[m][n][i] - delta_row[m][i / 2]);
    });
    multiply_add<kSplit, kD>(out, ds, stage);
  }

  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = static_cast<float>(s.scale);
  store_rows<kSplit, kD>(at(dq, s.dq_strides, b, warp_q0, h), s.dq_strides[1], Tq - warp_q0, D, out,
                         factor, vectors);
}

template <bool kSplit, size_t N>
void dq_with(const AttentionTile (&tiles)[N], const Tf32Limits& limits, float* dq, const float* d_o,
             const float* lse, const float* delta, const float* q, const float* k, const float* v,
             const AttentionShape& s, Stream stream) {
  const bool vectors = rows_aligned(dq, s.dq_strides) && rows_aligned(d_o, s.do_strides) &&
                       rows_aligned(q, s.q_strides) && rows_aligned(k, s.k_strides) &&
                       rows_aligned(v, s.v_strides);
  const int index =
      choose_tf32_tile(tiles, tf32_backward_shared_bytes, s.D, s.Tq, s.B * s.H, limits);
  with_tile<static_cast<int>(N)>(index, [&](auto tile) {
    const AttentionTile& t = tiles[index];
    launch(tf32_attention_dq_kernel<kSplit, tile>,
           one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)), dim3(kAttentionThreads),
           static_cast<size_t>(tf32_backward_shared_bytes(t)), stream, dq, d_o, lse, delta, q, k, v,
           s, vectors);
  });
}

}  // namespace

void tf32_attention_dq(const Tf32Limits& limits, float* dq, const float* d_o, const float* lse,
                       const float* delta, const float* q, const float* k, const float* v,
                       const AttentionShape& s, Stream stream) {
  if (s.tf32) {
    dq_with<false>(kTf32QueryTiles, limits, dq, d_o, lse, delta, q, k, v, s, stream);
  } else {
    dq_with<true>(kSplitQueryTiles, limits, dq, d_o, lse, delta, q, k, v, s, stream);
  }
}

void tf32_attention_backward_within(const Tf32Limits& limits, float* dq, float* dk, float* dv,
                                    const float* d_o, const float* o, const float* lse,
                                    const float* q, const float* k, const float* v,
                                    const AttentionShape& s, float* delta, Stream stream) {
  check_mma_attention(s);
  const bool vectors = rows_aligned(d_o, s.do_strides) && rows_aligned(o, s.o_strides);
  launch(tf32_attention_delta_kernel,
         one_block_each(ceil_div(s.B * s.Tq * s.H, kDeltaThreads / kDeltaLanes)),
         dim3(kDeltaThreads), 0, stream, delta, d_o, o, s, vectors);
  tf32_attention_dkdv(limits, dk, dv, d_o, lse, delta, q, k, v, s, stream);
  tf32_attention_dq(limits, dq, d_o, lse, delta, q, k, v, s, stream);
}

void tf32_attention_backward(float* dq, float* dk, float* dv, const float* d_o, const float* o,
                             const float* lse, const float* q, const float* k, const float* v,
                             const AttentionShape& s, float* delta, Stream stream) {
  tf32_attention_backward_within(device_limits(), dq, dk, dv, d_o, o, lse, q, k, v, s, delta,
                                 stream);
}

}  // namespace quern::kernels::cuda
