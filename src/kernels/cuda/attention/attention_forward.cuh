// The forward of the attentions by mma.sync, of BF16 and of FP32 tensors: o (B, Tq, H, D) =
// softmax(scale q k^T) v (FlashAttention-2: Dao, 2023, algorithm 1). A block of 4 warps has a tile
// of queries, each warp its own rows. It walks over the keys while K and V of the next tile are
// copied. S and P stay in registers: the accumulators of Q K^T are the operand of P V.
#pragma once

#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/mma/attention_mma_softmax.cuh"

namespace quern::kernels::cuda {

// o and logsumexp of a block's queries; `shared`: the address of its shared memory. Products: the
// tile, and the products and the store of its type of elements.
template <class Products, class T>
__device__ __forceinline__ void attend(const AttentionForward<T>& x, const AttentionShape& s,
                                       bool vectors, uint32_t shared) {
  constexpr AttentionTile tile = Products::tile;
  constexpr int kD = tile.head_dim;
  using Block = QueryBlock<T, kD, tile.rows, tile.columns>;
  constexpr int kM = Block::kM;
  const Block block(s, x.k, x.v, vectors, shared, 1);
  if (block.key_tiles > 0) {
    block.load_queries(block.tile, x.q, s.q_strides);
    block.load_stage(0);
  }
  const float scale2 = static_cast<float>(s.scale) * kLog2E;
  const auto queries = Products::template hold<kM>(block.warp_rows());
  OnlineSoftmax<kM> softmax;
  float out[kM][kD / 8][4];
#pragma unroll 1
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool careful = attempt > 0;
    softmax = {};
    clear(out);
    for (int j = 0; j < block.key_tiles; ++j) {
      block.advance(j);
      const Visible visible = visible_keys(s, block.warp_q0, j * tile.columns);
      if (visible.none(Block::kWarpRows, tile.columns)) continue;

      const uint32_t keys = block.stage(j);
      float scores[kM][Block::kN][4], weights[kM][2], rescale[kM][2];
      Products::multiply_keys(scores, queries, keys);
      if (!visible.all(Block::kWarpRows, tile.columns)) hide_scores(scores, visible);
      if (j == 0 || careful) {
        softmax.raise(scores, scale2, j == 0, rescale);
        if (j > 0) scale_rows(out, rescale);
      }
      softmax.exponentiate(scores, scale2, weights);
      Products::add_values(out, scores, keys + Block::kColumnBytes);
      if (softmax.add(weights, rescale)) scale_rows(out, rescale);
    }
    if (careful || !__syncthreads_or(softmax.overflow)) break;
    block.load_stage(0);
  }

  float inverse[kM][2];
  softmax.finish(inverse);
  Products::store(at(x.o, s.o_strides, block.b, block.warp_q0, block.h), s.o_strides[1],
                  block.Tq - block.warp_q0, block.D, out, inverse, block.warp_rows(), vectors);
  if (lane_column() != 0) return;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = block.warp_q0 + 8 * r + lane_row();
    if (i < block.Tq) x.lse[block.head * s.Tq + i] = softmax.logsumexp(r / 2, r % 2);
  }
}

}  // namespace quern::kernels::cuda
