// Flash attention, forward: o (B, Tq, H, D) = softmax(scale q k^T) v, with k and v (B, Tk, Hk, D).
// A block has a tile of queries; scores, maximum and sum of each row stay in registers. Bound by
// FP32 arithmetic: 4 Tq Tk D operations a head, half of that when causal.
#include "kernels/attention.h"

#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

// The online softmax (Milakov and Gimelshein, 2018) of a thread's rows, in units of log2.
template <int kRows>
struct OnlineSoftmax {
  float max[kRows];
  float sum[kRows];  // of this thread's columns only, until `finish`

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      max[r] = -INFINITY;
      sum[r] = 0.0f;
    }
  }

  // Replaces scores by exp2(scores - new maximum). Earlier sums must be multiplied by `rescale`.
  template <int kColumns>
  __device__ void update(float (&scores)[kRows][kColumns], float (&rescale)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float highest = max[r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) highest = MaxOp{}(highest, scores[r][c]);
      highest = warp_reduce<MaxOp, 8>(highest, MaxOp{});
      const float base = highest == -INFINITY ? 0.0f : highest;  // -inf - -inf would be NaN
      rescale[r] = exp2f(max[r] - base);
      max[r] = highest;
      sum[r] *= rescale[r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        scores[r][c] = exp2f(scores[r][c] - base);
        sum[r] += scores[r][c];
      }
    }
  }

  // Sets `inverse` to 1 / sum, or 0 for a row without keys.
  __device__ void finish(float (&inverse)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] = warp_reduce<SumOp, 8>(sum[r], SumOp{});
      inverse[r] = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
    }
  }

  __device__ float logsumexp(int r) const {
    return max[r] * kLn2 + logf(sum[r]);
  }
};

// Grid: B H ceil(Tq / rows) blocks, a head's tiles side by side, the longest first.
template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward_kernel(const __grid_constant__ AttentionForward<float> x,
                             const __grid_constant__ AttentionShape s, bool vectors) {
  constexpr AttentionTile tile = kForwardTiles[kTile];
  constexpr int kD = tile.head_dim;
  constexpr int kRows = TilePlace<tile.rows>::kRows;
  constexpr int kColumns = tile.columns / 8;
  extern __shared__ float4 attention_shared[];
  float* const q_tile = reinterpret_cast<float*>(attention_shared);
  float* const k_tile = q_tile + tile.rows * (kD + kTilePad);
  float* const v_tile = k_tile + tile.columns * (kD + kTilePad);
  float* const p_tile = v_tile + tile.columns * (kD + kTilePad);

  const int64_t tiles = ceil_div(s.Tq, tile.rows);
  const int64_t b = blockIdx.x / tiles / s.H;
  const int64_t h = blockIdx.x / tiles % s.H;
  const int64_t kv_head = h / (s.H / s.Hk);
  const int64_t q0 = (tiles - 1 - blockIdx.x % tiles) * tile.rows;
  const TilePlace<tile.rows> place;

  load_tile<tile.rows, kD>(q_tile, at(x.q, s.q_strides, b, q0, h), s.q_strides[1], s.Tq - q0, s.D,
                           static_cast<float>(s.scale) * kLog2E, vectors);
  OnlineSoftmax<kRows> softmax;
  float out[kRows][kD / 8] = {};
  const int64_t end = keys_end(s, q0, tile.rows);
  for (int64_t k0 = 0; k0 < end; k0 += tile.columns) {
    __syncthreads();  // the previous tiles have been read
    load_tile<tile.columns, kD>(k_tile, at(x.k, s.k_strides, b, k0, kv_head), s.k_strides[1],
                                s.Tk - k0, s.D, 1.0f, vectors);
    load_tile<tile.columns, kD>(v_tile, at(x.v, s.v_strides, b, k0, kv_head), s.v_strides[1],
                                s.Tk - k0, s.D, 1.0f, vectors);
    __syncthreads();

    float scores[kRows][kColumns];
    multiply_transposed<kD>(scores, q_tile, k_tile, place);
    if (!all_visible(s, q0, tile.rows, k0, tile.columns)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (!visible(s, q0 + place.row(r), k0 + place.column(c))) scores[r][c] = -INFINITY;
        }
      }
    }
    float rescale[kRows];
    softmax.update(scores, rescale);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int d = 0; d < kD / 8; ++d) out[r][d] *= rescale[r];
    }
    store_scores(p_tile, scores, place);
    multiply_add<kD, tile.columns>(out, p_tile, v_tile, place);
  }

  float inverse[kRows];
  softmax.finish(inverse);
  store_rows<kD>(at(x.o, s.o_strides, b, q0, h), s.o_strides[1], s.Tq - q0, s.D, out, inverse,
                 place, vectors);
  if (place.first_column != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t i = q0 + place.row(r);
    if (i < s.Tq) x.lse[(b * s.H + h) * s.Tq + i] = softmax.logsumexp(r);
  }
}

}  // namespace

void scalar_attention_forward(int64_t shared_bytes, const AttentionForward<float>& x,
                              const AttentionShape& s, Stream stream) {
  check_attention(s);
  const int index = choose_tile(kForwardTiles, forward_shared_bytes, s.D, shared_bytes);
  with_tile(kForwardTiles, index, [&](auto tile) {
    const AttentionTile& t = kForwardTiles[index];
    launch(attention_forward_kernel<tile>, one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)),
           dim3(kAttentionThreads), static_cast<size_t>(forward_shared_bytes(t)), stream, x, s,
           rows_aligned(x, s));
  });
}

template <class T>
void attention_forward(T* o, acc_t<T>* lse, const T* q, const T* k, const T* v,
                       const AttentionShape& s, Stream stream) {
  const AttentionForward<T> x{o, lse, q, k, v};
  if constexpr (std::is_same_v<T, bfloat16>) {
    const char* const refusal = hopper_attention_refusal(x, s);
    if (!s.portable && refusal == nullptr) return hopper_attention_forward(x, s, stream);
    note_slow_attention("forward", x, s, refusal, stream);
    mma_attention_forward(device_traits().shared_bytes_per_block, x, s, stream);
  } else if (const char* const refusal = tf32_attention_refusal(s); refusal == nullptr) {
    note_slow_attention("forward", x, s, nullptr, stream);
    tf32_attention_forward(limits_of(traits_of(stream)), x, s, stream);
  } else {
    note_slow_attention("forward", x, s, refusal, stream);
    scalar_attention_forward(device_traits().shared_bytes_per_block, x, s, stream);
  }
}

template decltype(attention_forward<float>) attention_forward<float>;
template decltype(attention_forward<bfloat16>) attention_forward<bfloat16>;

}  // namespace quern::kernels::cuda
