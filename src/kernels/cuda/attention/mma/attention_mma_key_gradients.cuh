// A warp's part of dK and dV in the portable tensor-core attention's backward: from scores to P and
// dS, their products, and the stores.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma/attention_mma_backward.cuh"

namespace quern::kernels::cuda {

// Calls body(m, n, i, logsumexp, delta) for each of a warp's scores. `statistics`: address of the
// first column's.
template <int kM, int kN, class Body>
__device__ __forceinline__ void for_each_score(uint32_t statistics, Body body) {
  statistics += lane_column() * 8;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float4 columns = load_shared_float4(statistics + n * 64);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        body(m, n, i, i % 2 == 0 ? columns.x : columns.z, i % 2 == 0 ? columns.y : columns.w);
      }
    }
  }
}

// S^T -> P^T
template <int kM, int kN>
__device__ __forceinline__ void exponentiate(float (&p)[kM][kN][4], float scale2,
                                             uint32_t statistics) {
  for_each_score<kM, kN>(statistics, [&](int m, int n, int i, float lse2, float) {
    p[m][n][i] = fast_exp2(fmaf(p[m][n][i], scale2, -lse2));
  });
}
// dP^T -> dS^T
template <int kM, int kN>
__device__ __forceinline__ void differentiate(float (&ds)[kM][kN][4], const float (&p)[kM][kN][4],
                                              uint32_t statistics) {
  for_each_score<kM, kN>(statistics, [&](int m, int n, int i, float, float delta) {
    ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta);
  });
}

// Writes a warp's rows of P^T or dS^T to `tile`, the address of their first column.
template <int kColumns, int kM, int kN>
__device__ __forceinline__ void store_scores(uint32_t tile, const float (&scores)[kM][kN][4]) {
  constexpr int kBytes = SharedRows<kColumns>::kBytes;
  tile += lane_row() * kBytes + lane_column() * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = scores[m][n] + 2 * half;
        store_shared(tile + (16 * m + 8 * half) * kBytes + n * 16, pack_bf16(pair[0], pair[1]));
      }
    }
  }
}

// The addresses in shared memory of a tile of queries, and of the warp's rows of P^T and dS^T.
template <int kTile>
struct BackwardStep {
  using Shared = BackwardShared<kTile>;
  uint32_t keys, values;        // the warp's, for ldmatrix
  uint32_t q, d_o, statistics;  // from the first query on
  uint32_t p, ds;
  int feature;  // the warp's first

  __device__ __forceinline__ BackwardStep(const Shared& shared, const BackwardWarp<kTile>& warp,
                                          int j) {
    const uint32_t rows = warp.key * Shared::Rows::kBytes + Shared::Rows::square_lane();
    keys = shared.keys + rows;
    values = shared.values + rows;
    q = shared.queries(j);
    d_o = q + Shared::kQueryBytes;
    statistics = d_o + Shared::kQueryBytes;
    p = shared.p() + warp.key * Shared::ScoreRows::kBytes;
    ds = shared.ds(j) + warp.key * Shared::ScoreRows::kBytes;
    feature = warp.feature;
  }
};

// A warp's sums of dK and dV.
template <int kTile>
struct KeyGradients {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  using Shared = BackwardShared<kTile>;
  using Warp = BackwardWarp<kTile>;
  using Step = BackwardStep<kTile>;
  static constexpr int kM = Warp::kKeys / kMmaRowsPerFragment;
  static constexpr int kN = Warp::kStep / 8;

  float dk[kM][Warp::kFeatures / 8][4] = {};
  float dv[kM][Warp::kFeatures / 8][4] = {};

  // Adds the products of the warp's own scores of kStep queries from `query` on.
  __device__ __forceinline__ void add_own(const Step& step, const Visible& seen, int query,
                                          float scale2, int part,
                                          const StepBarriers<kTile>& barriers) {
    if (seen.none(Warp::kKeys, Warp::kStep)) {
      const float zeros[kM][kN][4] = {};
      store_scores<tile.columns>(step.ds + query * 2, zeros);
      barriers.written();
      return;
    }
    float p[kM][kN][4], ds[kM][kN][4];
    const uint32_t columns = query * Shared::Rows::kBytes + Shared::Rows::column_lane();
    multiply_transposed<kD>(p, RowsInShared<kD>{step.keys}, step.q + columns);
    if (!seen.all(Warp::kKeys, Warp::kStep)) hide_scores(p, seen);
    multiply_transposed<kD>(ds, RowsInShared<kD>{step.values}, step.d_o + columns);
    exponentiate(p, scale2, step.statistics + query * 8);
    differentiate(ds, p, step.statistics + query * 8);
    if constexpr (Warp::kSplit > 1) store_scores<tile.columns>(step.p + query * 2, p);
    store_scores<tile.columns>(step.ds + query * 2, ds);
    barriers.written();
    add(ScoresAsRows{p}, ScoresAsRows{ds}, step, query, part);
  }
  // Adds the products of the scores of the other warp that has these keys.
  __device__ __forceinline__ void add_other(const Step& step, int query, int part) {
    const uint32_t scores = query * 2 + Shared::ScoreRows::square_lane();
    add(RowsInShared<tile.columns>{step.p + scores}, RowsInShared<tile.columns>{step.ds + scores},
        step, query, part);
  }

 private:
  template <class Rows>
  __device__ __forceinline__ void add(const Rows& p, const Rows& ds, const Step& step, int query,
                                      int part) {
    const uint32_t queries = query * Shared::Rows::kBytes + Shared::Rows::square_lane() +
                             (part * Shared::kFeatures + step.feature) * 2;
    multiply_add<kD, Warp::kFeatures, Warp::kStep / 16>(dv, p, step.d_o + queries);
    multiply_add<kD, Warp::kFeatures, Warp::kStep / 16>(dk, ds, step.q + queries);
  }
};

// dx = factor sum for the warp's keys and features of dK or dV. It passes through V's rows.
template <int kTile, int kM, int kFragments>
__device__ __forceinline__ void store_gradient(bfloat16* dx, const int64_t (&strides)[3],
                                               const MmaBackward& x,
                                               const BackwardShared<kTile>& shared,
                                               const BackwardPlace& place,
                                               const float (&sum)[kM][kFragments][4],
                                               float factor) {
  using Shared = BackwardShared<kTile>;
  const BackwardWarp<kTile> warp;
  float factors[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = factor;
  const int key = place.k0 + warp.key;
  store_rows<Shared::tile.head_dim, 8 * kFragments>(
      at(dx, strides, place.b, key, place.kv_head), strides[1], static_cast<int>(x.s.Tk) - key,
      place.part * Shared::kFeatures + warp.feature, static_cast<int>(x.s.D), sum, factors,
      shared.values + warp.key * Shared::Rows::kBytes + warp.feature * 2, x.vectors);
}

}  // namespace quern::kernels::cuda
