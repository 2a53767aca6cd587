// Flash attention, backward, by the tensor cores of compute capability 8.0 and later: dQ (B, Tq, H,
// D), dK and dV (B, Tk, Hk, D) by FlashAttention-2 (Dao, 2023), algorithm 2. P is recomputed from
// logsumexp. With delta_i = dO_i . O_i, dP = dO V^T and dS = P (dP - delta):
//   dV = P^T dO,   dK = scale dS^T Q,   dQ = scale dS K.
// A block has a tile of keys, each warp its own rows of dK and dV, and walks over the queries. It
// computes S^T, so that P^T and dS^T, in registers, are operands of dV and dK. dS^T goes through
// shared memory for dQ. The block's share of dQ is added to a sum in global memory one step later,
// when every warp has written its rows. So the warps wait for each other once a step
// (attention_mma_backward.cuh), and for the shares of earlier key tiles (attention_turn.cuh). Bound
// by mma and by ldmatrix: 10 Tq Tk D operations a head, half of that when causal.
#include "kernels/cuda/attention/mma/attention_mma_backward.cuh"

#include "kernels/cuda/attention/mma/attention_mma_key_gradients.cuh"

namespace quern::kernels::cuda {

namespace {

// Adds the block's share of a tile of dQ (dS K of its keys), in its turn.
template <int kTile>
__device__ __forceinline__ void add_dq(const MmaBackward& x, const BackwardPlace& place,
                                       const QueryWalk& walk, uint32_t ds, uint32_t keys,
                                       Turn& turn) {
  using Part = DqPart<kTile>;
  turn.ask();
  float sum[Part::kM][Part::kN][4];
  multiply_dq<kTile>(sum, ds, keys + place.part * Part::kFeatures * 2);
  const int64_t head = static_cast<int64_t>(place.b) * x.s.H + place.first_head + walk.head;
  const int64_t tile = (head * place.query_tiles + walk.tile) * Part::kParts + place.part;
  turn.wait(walk.step(place.query_tiles));
  write_dq(x.dq_sum + tile * Part::kTileFloats + Part::offset(), sum,
           x.s.deterministic && place.tile == 0);
}

// Grid: B Hk ceil(Tk / rows) ceil(head_dim / features) blocks. The query heads that share the key
// head are summed in order.
template <int kTile>
__global__ void __launch_bounds__(mma_backward_threads(kMmaBackwardTiles[kTile]),
                                  mma_backward_blocks(kMmaBackwardTiles[kTile]))
    mma_attention_backward_kernel(const __grid_constant__ MmaBackward x) {
  constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  using Warp = BackwardWarp<kTile>;
  using Part = DqPart<kTile>;
  extern __shared__ uint4 mma_shared[];
  const BackwardShared<kTile> shared(mma_shared);

  __shared__ uint64_t step_barriers[4];
  const StepBarriers<kTile> barriers(step_barriers);
  const AttentionShape& s = x.s;
  __shared__ unsigned mine;
  const BackwardPlace place(s, take_ticket(x.ticket, &mine), tile.rows, tile.columns, Part::kParts);
  const Warp warp;
  QueryWalk next(place.query_tiles);
  if (place.steps > 0) {
    load_keys(x, shared, place);
    load_queries<BackwardShared<kTile>>(x, shared.queries(0), place, next);
  }

  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  Turn turn = place.turn(s.deterministic ? x.progress : nullptr);
  KeyGradients<kTile> sums;
  QueryWalk now = next, before = next;
  for (int j = 0;; ++j) {
    barriers.begin(j);
    // All warps have added their shares of tile j - 2. They take turns in publishing that.
    if (j > 1 && warp_index() == j % Part::kWarps) turn.publish(before.step(place.query_tiles));
    before = now;
    now = next;
    next.advance(place.first_tile, place.query_tiles);
    if (j + 1 < place.steps)
      load_queries<BackwardShared<kTile>>(x, shared.queries(j + 1), place, next);
    if (j > 0) add_dq<kTile>(x, place, before, shared.ds(j - 1), shared.keys, turn);
    if (j >= place.steps) break;

    if (barriers.kLoose && j > 0) warp.synchronize();  // the other no longer reads the last P
    const BackwardStep<kTile> step(shared, warp, j);
    const auto visible = [&](int query) {
      return visible_queries(s, place.k0 + warp.key, now.tile * tile.columns + query);
    };
#pragma unroll 1
    for (int query = warp.query; query < warp.query + Warp::kQueries; query += Warp::kStep) {
      sums.add_own(step, visible(query), query, scale2, place.part, barriers);
    }
    if constexpr (Warp::kSplit > 1) {
      warp.synchronize();
      const int query = Warp::kQueries - warp.query;
      if (!visible(query).none(Warp::kKeys, Warp::kStep)) sums.add_other(step, query, place.part);
    }
    barriers.end(j);
  }
  __syncthreads();
  if (place.steps > 0 && warp_index() == 0) turn.publish(before.step(place.query_tiles));
  store_gradient<kTile>(x.dv, s.dv_strides, x, shared, place, sums.dv, 1.0f);
  store_gradient<kTile>(x.dk, s.dk_strides, x, shared, place, sums.dk, static_cast<float>(s.scale));
}

// dq = scale dq_sum, one block a tile. Grid: B H query tiles parts. Tiles that no key reaches were
// never written; their dq is 0.
template <int kTile>
__global__ void __launch_bounds__(mma_backward_threads(kMmaBackwardTiles[kTile]))
    mma_attention_dq_kernel(const __grid_constant__ MmaBackward x) {
  using Part = DqPart<kTile>;
  using Rows = SharedRows<Part::kFeatures>;
  __shared__ __align__(16) uint8_t rows_shared[Part::tile.columns * Rows::kBytes];

  const AttentionShape& s = x.s;
  const int query_tiles = static_cast<int>(ceil_div(s.Tq, Part::tile.columns));
  const int part = blockIdx.x % Part::kParts;
  const int tile = blockIdx.x / Part::kParts % query_tiles;
  const int64_t head = blockIdx.x / Part::kParts / query_tiles;
  const int q0 = tile * Part::tile.columns + Part::first_query();

  const bool written = s.Tk > 0 && tile >= first_query_tile(s, 0, Part::tile.columns);
  const float* source =
      x.dq_sum + static_cast<int64_t>(blockIdx.x) * Part::kTileFloats + Part::offset();
  float sum[Part::kM][Part::kN][4] = {};
  float factor[Part::kM][2];
#pragma unroll
  for (int m = 0; m < Part::kM; ++m) {
    factor[m][0] = factor[m][1] = static_cast<float>(s.scale);
#pragma unroll
    for (int n = 0; n < Part::kN; ++n) {
      if (written) load_vec(sum[m][n], source + (m * Part::kN + n) * (4 * kWarpSize));
    }
  }
  store_rows<Part::kFeatures, Part::part.features>(
      at(x.dq, s.dq_strides, head / s.H, q0, head % s.H), s.dq_strides[1],
      static_cast<int>(s.Tq) - q0, part * Part::kFeatures + Part::first_feature(),
      static_cast<int>(s.D), sum, factor,
      shared_address(rows_shared) + Part::first_query() * Rows::kBytes + Part::first_feature() * 2,
      x.vectors);
}

}  // namespace

void mma_attention_backward(int64_t shared_bytes, const AttentionBackward<bfloat16>& tensors,
                            const AttentionShape& s, void* scratch, Stream stream) {
  check_mma_attention(s);
  const int index = mma_backward_tile(shared_bytes, s);
  const AttentionTile& t = kMmaBackwardTiles[index];
  const MmaScratchEnds ends(s, t);
  const MmaBackward x{tensor_backward(tensors, s, scratch, ends.dq_sum),
                      reinterpret_cast<float*>(static_cast<uint8_t*>(scratch) + ends.statistics)};
  launch_statistics(x, scratch, s.deterministic ? ends.dq_sum : ends.statistics, ends.all, stream);
  const int64_t parts = t.head_dim / mma_backward_features(t);
  const auto threads = dim3(static_cast<unsigned>(mma_backward_threads(t)));
  with_tile(kMmaBackwardTiles, index, [&](auto tile) {
    launch(mma_attention_backward_kernel<tile>,
           one_block_each(s.B * s.Hk * parts * ceil_div(s.Tk, t.rows)), threads,
           static_cast<size_t>(mma_backward_shared_bytes(t)), stream, x);
    launch(mma_attention_dq_kernel<tile>,
           one_block_each(s.B * s.H * ceil_div(s.Tq, t.columns) * parts), threads, 0, stream, x);
  });
}

}  // namespace quern::kernels::cuda
