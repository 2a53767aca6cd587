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

template <bool kSplit, int kTile>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tf32_attention_dq_kernel(const __grid_constant__ Tf32Backward x) {
  constexpr AttentionTile tile = query_tile<kSplit>(kTile);
  constexpr int kD = tile.head_dim;
  using Block = QueryBlock<float, kD, tile.rows, tile.columns>;
  using Rows = FloatRows<kD>;
  constexpr int kM = Block::kM, kN = Block::kN;
  extern __shared__ uint4 tf32_shared[];
  const AttentionShape& s = x.s;
  const Block block(s, x.k, x.v, x.vectors, shared_address(tf32_shared), 2);
  if (block.key_tiles > 0) {
    block.load_queries(block.tile, x.q, s.q_strides);
    block.load_queries(block.tile + Block::kRowBytes, x.d_o, s.do_strides);
    block.load_stage(0);
  }
  float2 statistics[kM][2];
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = block.warp_q0 + 8 * r + lane_row();
    statistics[r / 2][r % 2] =
        i < block.Tq ? x.statistics[block.head * s.Tq + i] : make_float2(0.0f, 0.0f);
  }

  const float scale = static_cast<float>(s.scale), scale2 = scale * kLog2E;
  const RowsInShared<kSplit, kD> q_in_shared{block.warp_rows() + Rows::square_lane()};
  const RowsInShared<kSplit, kD> output_gradients{q_in_shared.address + Block::kRowBytes};
  const auto queries = hold_queries<kSplit, kM>(q_in_shared);
  float out[kM][kD / 8][4] = {};
  for (int j = 0; j < block.key_tiles; ++j) {
    block.advance(j);
    const Visible visible = visible_keys(s, block.warp_q0, j * tile.columns);
    if (visible.none(Block::kWarpRows, tile.columns)) continue;

    const uint32_t keys = block.stage(j);
    float p[kM][kN][4], ds[kM][kN][4];
    multiply_transposed<kSplit, kD, kD / 8>(p, queries, keys + Rows::column_lane());
    if (!visible.all(Block::kWarpRows, tile.columns)) hide_scores(p, visible);
    multiply_transposed<kSplit, kD, kD / 8>(ds, output_gradients,
                                            keys + Block::kColumnBytes + Rows::column_lane());
    for_each_element<kM, kN>([&](int m, int n, int i) {
      const float2 row = statistics[m][i / 2];  // logsumexp, delta
      ds[m][n][i] = scale * recompute(p[m][n][i], scale2, row.x) * (ds[m][n][i] - row.y);
    });
    multiply_add<kSplit, kD>(out, ScoresAsRows<kSplit, kM, kN>(ds), keys);
  }

  store_rows<kSplit, kD>(at(x.dq, s.dq_strides, block.b, block.warp_q0, block.h), s.dq_strides[1],
                         block.Tq - block.warp_q0, block.D, out, x.vectors);
}

template <bool kSplit, size_t N>
void launch_dq(const AttentionTile (&tiles)[N], const Tf32Limits& limits, const Tf32Backward& x,
               Stream stream) {
  const AttentionShape& s = x.s;
  const int index =
      choose_tf32_tile(tiles, tf32_backward_shared_bytes, s.D, s.Tq, s.B * s.H, limits);
  with_tile(tiles, index, [&](auto tile) {
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
