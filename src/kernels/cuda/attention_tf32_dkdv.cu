// dK and dV of flash attention of FP32 tensors by tensor cores: attention_tf32_backward.cu has the
// math. A block has a tile of keys and walks over the queries that see it. The scores are computed
// as S^T, so that P^T and dS^T are operands of the next products where they lie, in registers.
#include "kernels/cuda/attention_tf32.cuh"

namespace quern::kernels::cuda {

namespace {

template <bool kSplit>
constexpr AttentionTile key_tile(int index) {
  return kSplit ? kSplitKeyTiles[index] : kTf32KeyTiles[index];
}

// Starts to copy logsumexp and delta of kColumns queries into the padding of their rows of Q. Zeros
// beyond `rows`.
template <int kColumns, int kD>
__device__ __forceinline__ void load_statistics(uint32_t q_tile, const float* lse,
                                                const float* delta, int rows) {
  const int column = reread_thread();
  if (column >= kColumns) return;
  const uint32_t padding = q_tile + column * FloatRows<kD>::kBytes + FloatRows<kD>::kPadding;
  copy_async<4>(padding, lse + column, column < rows);
  copy_async<4>(padding + 4, delta + column, column < rows);
}

// Over this lane's columns 8 n + lane_column() + c of kN tiles.
template <int kN, class Body>
__device__ __forceinline__ void for_each_column(Body body) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) body(n, c);
  }
}

__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

// x; but what is computed from it in a loop stays there, as with reread_thread().
__device__ __forceinline__ int pinned(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The queries that see a tile of keys, tile by tile, of each query head that shares the key head:
// tile j is tile j % tiles of query head first_head + j / tiles.
struct QueryWalk {
  int begin, tiles, head, q0;

  __device__ QueryWalk(const AttentionShape& s, int k0, int first_head, int columns) {
    const int Tq = static_cast<int>(s.Tq);
    const int first = s.causal ? max(k0 + Tq - static_cast<int>(s.Tk), 0) : 0;  // that sees key k0
    begin = first / columns * columns;
    tiles = begin < Tq ? (Tq - begin + columns - 1) / columns : 0;
    head = first_head;
    q0 = begin;
  }
  __device__ __forceinline__ void next(int columns, int Tq) {
    q0 += columns;
    if (q0 < Tq) return;
    q0 = begin;
    ++head;
  }
};

// The block's keys: rows from k0 of one head of one batch.
struct KeyTile {
  int b, kv_head, k0;

  __device__ __forceinline__ KeyTile(const AttentionShape& s, int rows) {
    unsigned block;  // read anew each time: nothing of it is kept in registers over the loop
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int tiles = static_cast<int>(ceil_div(s.Tk, rows));
    const TileOrder order(block, s.B * s.Hk, tiles, (kMmaWaveBlocks + tiles - 1) / tiles);
    b = order.head / static_cast<int>(s.Hk);
    kv_head = order.head % static_cast<int>(s.Hk);
    k0 = order.tile * rows;
  }
};

// Grid: B Hk ceil(Tk / rows) blocks in TileOrder; causal, the first keys have most queries. Rows
// are keys here, columns queries. The query heads that share the key head are summed in order.
template <bool kSplit, int kTile>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tf32_attention_dkdv_kernel(float* dk, float* dv, const float* d_o, const float* lse,
                               const float* delta, const float* q, const float* k, const float* v,
                               const __grid_constant__ AttentionShape s, bool vectors) {
  constexpr AttentionTile tile = key_tile<kSplit>(kTile);
  constexpr int kD = tile.head_dim;
  constexpr int kWarpRows = tile.rows / kTf32Warps;
  constexpr int kM = kWarpRows / kTf32RowsPerFragment;
  constexpr int kN = tile.columns / 8;
  // Fewer than all for lack of registers.
  constexpr int kSteps = !kSplit || kD <= 80 ? kD / 8 : (kD == 128 ? 4 : 2);
  using Rows = FloatRows<kD>;
  constexpr int kRowBytes = tile.rows * Rows::kBytes;        // K or V
  constexpr int kColumnBytes = tile.columns * Rows::kBytes;  // Q or dO; a stage is both
  extern __shared__ uint4 tf32_shared[];
  const uint32_t k_tile = shared_address(tf32_shared);
  const uint32_t k_rows = k_tile + warp_index() * kWarpRows * Rows::kBytes;
  const uint32_t stages = k_tile + 2 * kRowBytes;

  const int Tq = static_cast<int>(s.Tq), Tk = static_cast<int>(s.Tk), D = static_cast<int>(s.D);
  const int group = static_cast<int>(s.H / s.Hk);
  const KeyTile block(s, tile.rows);
  const int warp_k0 = block.k0 + warp_index() * kWarpRows;
  QueryWalk coming(s, block.k0, block.kv_head * group, tile.columns);
  const int all_tiles = group * coming.tiles;
  const auto load_next = [&](int j) {
    const int b = pinned(block.b);
    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    const int64_t row = (static_cast<int64_t>(b) * s.H + coming.head) * s.Tq + coming.q0;
    load_rows<tile.columns, kD>(stage, at(q, s.q_strides, b, coming.q0, coming.head),
                                s.q_strides[1], Tq - coming.q0, D, vectors);
    load_rows<tile.columns, kD>(stage + kColumnBytes,
                                at(d_o, s.do_strides, b, coming.q0, coming.head), s.do_strides[1],
                                Tq - coming.q0, D, vectors);
    load_statistics<tile.columns, kD>(stage, lse + row, delta + row, Tq - coming.q0);
    coming.next(tile.columns, Tq);
  };

  if (all_tiles > 0) {
    load_rows<tile.rows, kD>(k_tile, at(k, s.k_strides, block.b, block.k0, block.kv_head),
                             s.k_strides[1], Tk - block.k0, D, vectors);
    load_rows<tile.rows, kD>(k_tile + kRowBytes,
                             at(v, s.v_strides, block.b, block.k0, block.kv_head), s.v_strides[1],
                             Tk - block.k0, D, vectors);
    load_next(0);
  }

  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  const RowsInShared<kSplit, kD> keys{k_rows + Rows::row_lane()};
  const RowsInShared<kSplit, kD> values{keys.address + kRowBytes};
  float dk_out[kM][kD / 8][4] = {};
  float dv_out[kM][kD / 8][4] = {};
  int q0 = coming.begin;
  for (int j = 0; j < all_tiles; ++j) {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
    if (j + 1 < all_tiles) load_next(j + 1);
    const Visible visible = visible_queries(s, warp_k0, q0);
    q0 = q0 + tile.columns < Tq ? q0 + tile.columns : coming.begin;
    if (visible.none(kWarpRows, tile.columns)) continue;

    const uint32_t stage = stages + j % 2 * (2 * kColumnBytes);
    float p[kM][kN][4], ds[kM][kN][4];
    multiply_transposed<kSplit, kD, kSteps>(p, keys, stage + Rows::column_lane());
    if (!visible.all(kWarpRows, tile.columns)) hide_scores(p, visible);
    for_each_column<kN>([&](int n, int c) {
      const uint32_t row = stage + (8 * n + lane_column() + c) * Rows::kBytes;
      const float lse2 = log2_sum(load_shared_float(row + Rows::kPadding));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = c; i < 4; i += 2) p[m][n][i] = recompute(p[m][n][i], scale2, lse2);
      }
    });
    multiply_transposed<kSplit, kD, kSteps>(ds, values, stage + kColumnBytes + Rows::column_lane());
    for_each_column<kN>([&](int n, int c) {
      const uint32_t row = stage + (8 * n + lane_column() + c) * Rows::kBytes;
      const float delta_column = load_shared_float(row + Rows::kPadding + 4);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = c; i < 4; i += 2) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta_column);
      }
    });
    multiply_add<kSplit, kD>(dv_out, p, stage + kColumnBytes);
    multiply_add<kSplit, kD>(dk_out, ds, stage);
  }

  const KeyTile done(s, tile.rows);
  const int done_k0 = done.k0 + warp_index() * kWarpRows;
  float one[kM][2], factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    one[m][0] = one[m][1] = 1.0f;
    factor[m][0] = factor[m][1] = static_cast<float>(s.scale);
  }
  store_rows<kSplit, kD>(at(dv, s.dv_strides, done.b, done_k0, done.kv_head), s.dv_strides[1],
                         Tk - done_k0, D, dv_out, one, vectors);
  store_rows<kSplit, kD>(at(dk, s.dk_strides, done.b, done_k0, done.kv_head), s.dk_strides[1],
                         Tk - done_k0, D, dk_out, factor, vectors);
}

template <bool kSplit, size_t N>
void dkdv_with(const AttentionTile (&tiles)[N], const Tf32Limits& limits, float* dk, float* dv,
               const float* d_o, const float* lse, const float* delta, const float* q,
               const float* k, const float* v, const AttentionShape& s, Stream stream) {
  const bool vectors = rows_aligned(dk, s.dk_strides) && rows_aligned(dv, s.dv_strides) &&
                       rows_aligned(d_o, s.do_strides) && rows_aligned(q, s.q_strides) &&
                       rows_aligned(k, s.k_strides) && rows_aligned(v, s.v_strides);
  const int index =
      choose_tf32_tile(tiles, tf32_backward_shared_bytes, s.D, s.Tk, s.B * s.Hk, limits);
  with_tile<static_cast<int>(N)>(index, [&](auto tile) {
    const AttentionTile& t = tiles[index];
    launch(tf32_attention_dkdv_kernel<kSplit, tile>,
           one_block_each(s.B * s.Hk * ceil_div(s.Tk, t.rows)), dim3(kAttentionThreads),
           static_cast<size_t>(tf32_backward_shared_bytes(t)), stream, dk, dv, d_o, lse, delta, q,
           k, v, s, vectors);
  });
}

}  // namespace

void tf32_attention_dkdv(const Tf32Limits& limits, float* dk, float* dv, const float* d_o,
                         const float* lse, const float* delta, const float* q, const float* k,
                         const float* v, const AttentionShape& s, Stream stream) {
  if (s.tf32) {
    dkdv_with<false>(kTf32KeyTiles, limits, dk, dv, d_o, lse, delta, q, k, v, s, stream);
  } else {
    dkdv_with<true>(kSplitKeyTiles, limits, dk, dv, d_o, lse, delta, q, k, v, s, stream);
  }
}

}  // namespace quern::kernels::cuda
