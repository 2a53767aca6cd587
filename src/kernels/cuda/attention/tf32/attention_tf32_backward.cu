// Flash attention of FP32 tensors, backward, by the tensor cores of compute capability 8.0 and
// later: dQ (B, Tq, H, D), dK and dV (B, Tk, Hk, D) by FlashAttention-2 (Dao, 2023), algorithm 2. P
// comes from logsumexp. With delta_i = dO_i . O_i, dP = dO V^T and dS = scale P (dP - delta):
//   dV = P^T dO,   dK = dS^T Q,   dQ = dS K.
// A block has a tile of keys, each warp its own rows of dK and dV, and walks over the queries. It
// computes S^T, so that P^T and dS^T, in registers, are operands of dV and dK. For wide heads in
// split mode dS goes through shared memory for dQ, to which key tiles add their shares in turn. For
// the others a second kernel computes the scores again, with a tile of queries a block. Bound by
// mma: 10 or 14 Tq Tk D operations a head, half of that when causal, and three times as many in
// split mode.
#include "kernels/cuda/attention/tf32/attention_tf32_backward.cuh"

#include "kernels/cuda/attention/tf32/attention_tf32_share.cuh"

namespace quern::kernels::cuda {

namespace {

// A warp's sums of dK and dV.
template <bool kSplit, int kTile>
struct KeyGradients {
  using Shared = Tf32BackwardShared<kSplit, kTile>;
  using Rows = typename Shared::Rows;
  static constexpr AttentionTile tile = Shared::tile;
  static constexpr int kD = tile.head_dim;
  static constexpr int kWarpKeys = tile.rows / (Shared::kThreads / kWarpSize);
  static constexpr int kM = kWarpKeys / kMmaRowsPerFragment;
  static constexpr int kN = tile.columns / 8;
  using Scores = ScoresAsRows<kSplit, kM, kN>;

  float dk[kM][kD / 8][4] = {};
  float dv[kM][kD / 8][4] = {};

  static __device__ __forceinline__ int first_key() { return warp_index() * kWarpKeys; }

  // Adds the gradients from the queries at `q_tile`, and writes the warp's dS to shared memory
  // where it goes into dQ. Calls `publish` between the products.
  template <class Publish>
  __device__ __forceinline__ void add(const Shared& shared, uint32_t q_tile, const Visible& seen,
                                      float scale, Publish publish) {
    float p[kM][kN][4] = {}, ds[kM][kN][4] = {};
    const bool any = !seen.none(kWarpKeys, tile.columns);
    if (any) compute_scores(p, ds, shared, q_tile, seen, scale);
    publish();
    if (!any && !Shared::kAddsDq) return;
    if (any) multiply_add<kSplit, kD>(dv, Scores(p), q_tile + Shared::kQueryBytes);
    const Scores rows(ds);
    if constexpr (Shared::kAddsDq) store_transposed(shared, first_key(), rows);
    if (any) multiply_add<kSplit, kD>(dk, rows, q_tile);
  }

 private:
  // Computes P^T and dS^T.
  static __device__ __forceinline__ void compute_scores(float (&p)[kM][kN][4],
                                                        float (&ds)[kM][kN][4],
                                                        const Shared& shared, uint32_t q_tile,
                                                        const Visible& seen, float scale) {
    // All steps where registers suffice, otherwise fewer.
    constexpr int kSteps = !kSplit || kD <= 80 ? kD / 8 : (kD == 128 ? 4 : 2);
    const RowsInShared<kSplit, kD> keys{shared.keys + first_key() * Rows::kBytes +
                                        Rows::square_lane()};
    const RowsInShared<kSplit, kD> values{keys.address + Shared::kKeyBytes};
    const float scale2 = scale * kLog2E;
    multiply_transposed<kSplit, kD, kSteps>(p, keys, q_tile + Rows::column_lane());
    if (!seen.all(kWarpKeys, tile.columns)) hide_scores(p, seen);
    for_each_score<kD, kM, kN>(q_tile + Rows::kPadding, [&](int m, int n, int i, float lse2) {
      p[m][n][i] = recompute(p[m][n][i], scale2, lse2);
    });
    multiply_transposed<kSplit, kD, kSteps>(ds, values,
                                            q_tile + Shared::kQueryBytes + Rows::column_lane());
    for_each_score<kD, kM, kN>(q_tile + Rows::kPadding + 4, [&](int m, int n, int i, float delta) {
      ds[m][n][i] = scale * p[m][n][i] * (ds[m][n][i] - delta);
    });
  }
};

// Adds the block's share of a tile of dQ, in its turn.
template <bool kSplit, int kTile>
__device__ __forceinline__ void add_dq(const Tf32Backward& x,
                                       const Tf32BackwardShared<kSplit, kTile>& shared,
                                       const BackwardPlace& place, const QueryWalk& walk,
                                       Turn& turn) {
  using Part = Tf32DqPart<kSplit, kTile>;
  const AttentionShape& s = x.s;
  const int q0 = walk.tile * Part::tile.columns;
  turn.ask();
  float sum[Part::kM][Part::kN][4];
  multiply_dq<kSplit, kTile>(sum, shared);
  turn.wait(walk.step(place.query_tiles));
  write_dq<Part>(at(x.dq, s.dq_strides, place.b, q0, place.first_head + walk.head), s.dq_strides[1],
                 static_cast<int>(s.Tq) - q0, static_cast<int>(s.D), sum, place.tile == 0,
                 x.vectors);
}

// Grid: B Hk ceil(Tk / rows) blocks. The query heads that share the key head are summed in order.
template <bool kSplit, int kTile>
__global__ void __launch_bounds__(tf32_backward_threads(tf32_key_tile<kSplit>(kTile)), 2)
    tf32_attention_backward_kernel(const __grid_constant__ Tf32Backward x) {
  using Shared = Tf32BackwardShared<kSplit, kTile>;
  using Sums = KeyGradients<kSplit, kTile>;
  constexpr AttentionTile tile = Shared::tile;
  constexpr int kWarps = Shared::kThreads / kWarpSize;
  extern __shared__ uint4 tf32_shared[];
  const Shared shared(tf32_shared);

  const AttentionShape& s = x.s;
  // In the padding of K's first row: the tiles alone may fill a block's shared memory.
  auto* const mine = reinterpret_cast<unsigned*>(tf32_shared) + Shared::Rows::kPadding / 4;
  const BackwardPlace place(s, take_ticket(x.ticket, mine), tile.rows, tile.columns, 1);
  QueryWalk next(place.query_tiles);
  if (place.steps > 0) {
    load_keys(x, shared, place);
    load_queries<Shared>(x, shared.queries(0), place, next);
  }

  const int k0 = place.k0 + Sums::first_key();
  Turn turn = place.turn(Shared::kAddsDq ? x.progress : nullptr);
  Sums sums;
  QueryWalk now = next, before = next;
  for (int j = 0; j < place.steps; ++j) {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 or its dS any more
    before = now;
    now = next;
    next.advance(place.first_tile, place.query_tiles);
    if (j + 1 < place.steps) load_queries<Shared>(x, shared.queries(j + 1), place, next);

    const Visible seen = visible_queries(s, k0, now.tile * tile.columns);
    sums.add(shared, shared.queries(j), seen, static_cast<float>(s.scale), [&] {
      // All warps have added their shares of tile j - 1, which have arrived by now. They take turns
      // in publishing that.
      if (!Shared::kAddsDq || j == 0 || warp_index() != j % kWarps) return;
      turn.publish(before.step(place.query_tiles));
    });
    if constexpr (Shared::kAddsDq) {
      __syncthreads();  // dS is there
      add_dq(x, shared, place, now, turn);
    }
  }
  if constexpr (Shared::kAddsDq) {
    __syncthreads();
    if (place.steps > 0 && warp_index() == 0) turn.publish(now.step(place.query_tiles));
  }

  const int rows = static_cast<int>(s.Tk) - k0, D = static_cast<int>(s.D);
  store_rows<kSplit, tile.head_dim>(at(x.dv, s.dv_strides, place.b, k0, place.kv_head),
                                    s.dv_strides[1], rows, D, sums.dv, x.vectors);
  store_rows<kSplit, tile.head_dim>(at(x.dk, s.dk_strides, place.b, k0, place.kv_head),
                                    s.dk_strides[1], rows, D, sums.dk, x.vectors);
}

template <bool kSplit, size_t N>
void launch_backward(const AttentionTile (&tiles)[N], int64_t (*shared_bytes)(const AttentionTile&),
                     const Tf32Limits& limits, const Tf32Backward& x, Stream stream) {
  const AttentionShape& s = x.s;
  const int index = choose_tf32_tile(tiles, shared_bytes, s.D, s.Tk, s.B * s.Hk, limits);
  with_tile(tiles, index, [&](auto tile) {
    const AttentionTile& t = tiles[index];
    launch(tf32_attention_backward_kernel<kSplit, tile>,
           one_block_each(s.B * s.Hk * ceil_div(s.Tk, t.rows)),
           dim3(static_cast<unsigned>(tf32_backward_threads(t))),
           static_cast<size_t>(shared_bytes(t)), stream, x);
  });
}

template <bool kSplit>
constexpr AttentionTile query_tile(int index) {
  return kSplit ? kSplitQueryTiles[index] : kTf32BackwardTiles[index];
}

// dQ where the kernel above does not add it. Grid: B H ceil(Tq / rows) blocks. Each walks over the
// keys of its queries.
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

void compute_dq(const Tf32Limits& limits, const Tf32Backward& x, Stream stream) {
  if (x.s.tf32) {
    launch_dq<false>(kTf32BackwardTiles, limits, x, stream);
  } else {
    launch_dq<true>(kSplitQueryTiles, limits, x, stream);
  }
}

}  // namespace

void tf32_attention_backward(const Tf32Limits& limits, const AttentionBackward<float>& tensors,
                             const AttentionShape& s, void* scratch, Stream stream) {
  check_mma_attention(s);
  const Tf32ScratchEnds ends(s, limits);
  const Tf32Backward x = tensor_backward(tensors, s, scratch, ends.statistics);
  launch_statistics(x, scratch, ends.statistics, ends.all, stream);
  if (s.tf32) {
    launch_backward<false>(kTf32BackwardTiles, tf32_backward_shared_bytes, limits, x, stream);
  } else {
    launch_backward<true>(kSplitKeyTiles, split_backward_shared_bytes, limits, x, stream);
  }
  if (!tf32_adds_dq(!s.tf32, s.D)) compute_dq(limits, x, stream);
}

}  // namespace quern::kernels::cuda
