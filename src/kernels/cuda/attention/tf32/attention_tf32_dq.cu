// dQ (B, Tq, H, D) of FP32 flash attention by tensor cores, where attention_tf32_backward.cu, which
// has the math, does not add it. A block has a tile of queries and walks over their keys. Bound by
// mma: 6 Tq Tk D operations a head (half when causal), three times as many in split mode.
#include "kernels/cuda/attention/tf32/attention_tf32_backward.cuh"

namespace quern::kernels::cuda {

namespace {

template <bool kSplit>
constexpr AttentionTile query_tile(int index) {
  return kSplit ? kSplitQueryTiles[index] : kTf32QueryTiles[index];
}

// Grid: B H ceil(Tq / rows) blocks in TileOrder, the last queries first.
template <bool kSplit, int kTile>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tf32_attention_dq_kernel(const __grid_constant__ Tf32Backward x) {
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

  const AttentionShape& s = x.s;
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
    load_rows<tile.columns, kD>(stage, at(x.k, s.k_strides, b, k0, kv_head), s.k_strides[1],
                                Tk - k0, D, x.vectors);
    load_rows<tile.columns, kD>(stage + kColumnBytes, at(x.v, s.v_strides, b, k0, kv_head),
                                s.v_strides[1], Tk - k0, D, x.vectors);
  };

  const int end = max(static_cast<int>(keys_end(s, q0, tile.rows)), 0);
  const int key_tiles = (end + tile.columns - 1) / tile.columns;
  if (key_tiles > 0) {
    load_rows<tile.rows, kD>(q_tile, at(x.q, s.q_strides, b, q0, h), s.q_strides[1], Tq - q0, D,
                             x.vectors);
    load_rows<tile.rows, kD>(q_tile + kRowBytes, at(x.d_o, s.do_strides, b, q0, h), s.do_strides[1],
                             Tq - q0, D, x.vectors);
    load_stage(0);
  }
  float2 statistics[kM][2];
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = warp_q0 + 8 * r + lane_row();
    statistics[r / 2][r % 2] =
        i < Tq ? x.statistics[order.head * s.Tq + i] : make_float2(0.0f, 0.0f);
  }

  const float scale = static_cast<float>(s.scale), scale2 = scale * kLog2E;
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
      const float2 row = statistics[m][i / 2];  // logsumexp, delta
      ds[m][n][i] = scale * recompute(p[m][n][i], scale2, row.x) * (ds[m][n][i] - row.y);
    });
    multiply_add<kSplit, kD>(out, ScoresAsRows<kSplit, kM, kN>(ds), stage);
  }

  store_rows<kSplit, kD>(at(x.dq, s.dq_strides, b, warp_q0, h), s.dq_strides[1], Tq - warp_q0, D,
                         out, x.vectors);
}

template <bool kSplit, size_t N>
void launch_dq(const AttentionTile (&tiles)[N], const Tf32Limits& limits, const Tf32Backward& x,
               Stream stream) {
  const AttentionShape& s = x.s;
  const int index =
      choose_tf32_tile(tiles, tf32_backward_shared_bytes, s.D, s.Tq, s.B * s.H, limits);
  with_tile<static_cast<int>(N)>(index, [&](auto tile) {
    const AttentionTile& t = tiles[index];
    launch(tf32_attention_dq_kernel<kSplit, tile>,
           one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)), dim3(kAttentionThreads),
           static_cast<size_t>(tf32_backward_shared_bytes(t)), stream, x);
  });
}

}  // namespace

void tf32_attention_dq(const Tf32Limits& limits, const Tf32Backward& x, Stream stream) {
  if (x.s.tf32) {
    launch_dq<false>(kTf32QueryTiles, limits, x, stream);
  } else {
    launch_dq<true>(kSplitQueryTiles, limits, x, stream);
  }
}

}  // namespace quern::kernels::cuda
