// Flash attention, backward: dQ (B, Tq, H, D), dK and dV (B, Tk, Hk, D). P is recomputed from
// logsumexp. With delta_i = dO_i . O_i, dP = dO V^T and dS = P (dP - delta):
//   dV = P^T dO,   dK = scale dS^T Q,   dQ = scale dS K.
// One kernel walks over the queries for a tile of keys (dK, dV), one over the keys for a tile of
// queries (dQ). So one block writes each element once, in a fixed order. Bound by FP32 arithmetic:
// 14 Tq Tk D operations a head, half of that when causal.

#include "kernels/attention.h"
#include "kernels/common/rotate_gradients.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

// delta (B, H, Tq) = sum over D of d_o o. One warp a row, heads side by side as in memory.
__global__ void attention_delta_kernel(float* delta, const float* d_o, const float* o,
                                       const __grid_constant__ AttentionShape s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarpSize);
  int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarpSize;
  for (; row < s.B * s.Tq * s.H; row += warps) {
    const int64_t b = row / s.H / s.Tq;
    const int64_t i = row / s.H % s.Tq;
    const int64_t h = row % s.H;
    const float* d_o_row = at(d_o, s.do_strides, b, i, h);
    const float* o_row = at(o, s.o_strides, b, i, h);
    float sum = 0.0f;
    for (int64_t d = lane; d < s.D; d += kWarpSize) {
      sum = fmaf(d_o_row[d], o_row[d], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) delta[(b * s.H + h) * s.Tq + i] = sum;
  }
}

// Grid: B H ceil(Tq / rows) blocks, a head's tiles side by side, the longest first.
template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_dq_kernel(const __grid_constant__ AttentionBackward<float> x, const float* delta,
                        const __grid_constant__ AttentionShape s, bool vectors) {
  constexpr AttentionTile tile = kBackwardTiles[kTile];
  constexpr int kD = tile.head_dim;
  constexpr int kRows = TilePlace<tile.rows>::kRows;
  constexpr int kColumns = tile.columns / 8;
  extern __shared__ float4 attention_shared[];
  float* const q_tile = reinterpret_cast<float*>(attention_shared);
  float* const do_tile = q_tile + tile.rows * (kD + kTilePad);
  float* const k_tile = do_tile + tile.rows * (kD + kTilePad);
  float* const v_tile = k_tile + tile.columns * (kD + kTilePad);
  float* const ds_tile = v_tile + tile.columns * (kD + kTilePad);

  const int64_t tiles = ceil_div(s.Tq, tile.rows);
  const int64_t b = blockIdx.x / tiles / s.H;
  const int64_t h = blockIdx.x / tiles % s.H;
  const int64_t kv_head = h / (s.H / s.Hk);
  const int64_t q0 = (tiles - 1 - blockIdx.x % tiles) * tile.rows;
  const TilePlace<tile.rows> place;

  load_tile<tile.rows, kD>(q_tile, at(x.q, s.q_strides, b, q0, h), s.q_strides[1], s.Tq - q0, s.D,
                           static_cast<float>(s.scale) * kLog2E, vectors);
  load_tile<tile.rows, kD>(do_tile, at(x.d_o, s.do_strides, b, q0, h), s.do_strides[1], s.Tq - q0,
                           s.D, 1.0f, vectors);
  float lse_row[kRows], delta_row[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t i = q0 + place.row(r);
    lse_row[r] = i < s.Tq ? x.lse[(b * s.H + h) * s.Tq + i] * kLog2E : 0.0f;
    delta_row[r] = i < s.Tq ? delta[(b * s.H + h) * s.Tq + i] : 0.0f;
  }

  float out[kRows][kD / 8] = {};
  const int64_t end = keys_end(s, q0, tile.rows);
  for (int64_t k0 = 0; k0 < end; k0 += tile.columns) {
    __syncthreads();  // the previous tiles have been read
    load_tile<tile.columns, kD>(k_tile, at(x.k, s.k_strides, b, k0, kv_head), s.k_strides[1],
                                s.Tk - k0, s.D, 1.0f, vectors);
    load_tile<tile.columns, kD>(v_tile, at(x.v, s.v_strides, b, k0, kv_head), s.v_strides[1],
                                s.Tk - k0, s.D, 1.0f, vectors);
    __syncthreads();

    float scores[kRows][kColumns], ds[kRows][kColumns];
    multiply_transposed<kD>(scores, q_tile, k_tile, place);
    multiply_transposed<kD>(ds, do_tile, v_tile, place);
    const bool whole = all_visible(s, q0, tile.rows, k0, tile.columns);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const bool seen = whole || visible(s, q0 + place.row(r), k0 + place.column(c));
        const float p = exp2f(scores[r][c] - lse_row[r]);
        ds[r][c] = seen ? p * (ds[r][c] - delta_row[r]) : 0.0f;
      }
    }
    store_scores(ds_tile, ds, place);
    multiply_add<kD, tile.columns>(out, ds_tile, k_tile, place);
  }

  float factor[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) factor[r] = static_cast<float>(s.scale);
  store_rows<kD>(at(x.dq, s.dq_strides, b, q0, h), s.dq_strides[1], s.Tq - q0, s.D, out, factor,
                 place, vectors);
}

// Grid: B Hk ceil(Tk / rows) blocks. Rows are keys here, columns queries: scores are S^T. The query
// heads that share the key head are summed in order.
template <int kTile>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_dkdv_kernel(const __grid_constant__ AttentionBackward<float> x, const float* delta,
                          const __grid_constant__ AttentionShape s, bool vectors) {
  constexpr AttentionTile tile = kBackwardTiles[kTile];
  constexpr int kD = tile.head_dim;
  constexpr int kRows = TilePlace<tile.rows>::kRows;
  constexpr int kColumns = tile.columns / 8;
  extern __shared__ float4 attention_shared[];
  float* const k_tile = reinterpret_cast<float*>(attention_shared);
  float* const v_tile = k_tile + tile.rows * (kD + kTilePad);
  float* const q_tile = v_tile + tile.rows * (kD + kTilePad);
  float* const do_tile = q_tile + tile.columns * (kD + kTilePad);
  float* const score_tile = do_tile + tile.columns * (kD + kTilePad);

  const int64_t tiles = ceil_div(s.Tk, tile.rows);
  const int64_t b = blockIdx.x / tiles / s.Hk;
  const int64_t kv_head = blockIdx.x / tiles % s.Hk;
  const int64_t k0 = blockIdx.x % tiles * tile.rows;  // causal: the first keys have most queries
  const int64_t group = s.H / s.Hk;
  const TilePlace<tile.rows> place;

  load_tile<tile.rows, kD>(k_tile, at(x.k, s.k_strides, b, k0, kv_head), s.k_strides[1], s.Tk - k0,
                           s.D, 1.0f, vectors);
  load_tile<tile.rows, kD>(v_tile, at(x.v, s.v_strides, b, k0, kv_head), s.v_strides[1], s.Tk - k0,
                           s.D, 1.0f, vectors);
  const int64_t first_query = s.causal ? k0 + s.Tq - s.Tk : 0;  // the first that sees key k0
  const int64_t q_begin = first_query > 0 ? first_query / tile.columns * tile.columns : 0;

  float dk_out[kRows][kD / 8] = {};
  float dv_out[kRows][kD / 8] = {};
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    for (int64_t q0 = q_begin; q0 < s.Tq; q0 += tile.columns) {
      __syncthreads();  // the previous tiles have been read
      load_tile<tile.columns, kD>(q_tile, at(x.q, s.q_strides, b, q0, h), s.q_strides[1], s.Tq - q0,
                                  s.D, static_cast<float>(s.scale) * kLog2E, vectors);
      load_tile<tile.columns, kD>(do_tile, at(x.d_o, s.do_strides, b, q0, h), s.do_strides[1],
                                  s.Tq - q0, s.D, 1.0f, vectors);
      __syncthreads();

      float p[kRows][kColumns], ds[kRows][kColumns];
      multiply_transposed<kD>(p, k_tile, q_tile, place);
      multiply_transposed<kD>(ds, v_tile, do_tile, place);
      const bool whole = all_visible(s, q0, tile.columns, k0, tile.rows);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int64_t i = q0 + place.column(c);
        const float lse_column = i < s.Tq ? x.lse[(b * s.H + h) * s.Tq + i] * kLog2E : 0.0f;
        const float delta_column = i < s.Tq ? delta[(b * s.H + h) * s.Tq + i] : 0.0f;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const bool seen = whole || visible(s, i, k0 + place.row(r));
          p[r][c] = seen ? exp2f(p[r][c] - lse_column) : 0.0f;
          ds[r][c] = seen ? p[r][c] * (ds[r][c] - delta_column) : 0.0f;
        }
      }
      store_scores(score_tile, p, place);
      multiply_add<kD, tile.columns>(dv_out, score_tile, do_tile, place);
      store_scores(score_tile, ds, place);
      multiply_add<kD, tile.columns>(dk_out, score_tile, q_tile, place);
    }
  }

  float one[kRows], ln2[kRows];  // q_tile holds scale log2(e) q
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    one[r] = 1.0f;
    ln2[r] = kLn2;
  }
  store_rows<kD>(at(x.dv, s.dv_strides, b, k0, kv_head), s.dv_strides[1], s.Tk - k0, s.D, dv_out,
                 one, place, vectors);
  store_rows<kD>(at(x.dk, s.dk_strides, b, k0, kv_head), s.dk_strides[1], s.Tk - k0, s.D, dk_out,
                 ln2, place, vectors);
}

}  // namespace

void scalar_attention_backward(int64_t shared_bytes, const AttentionBackward<float>& x,
                               const AttentionShape& s, void* scratch, Stream stream) {
  check_attention(s);
  constexpr int kDeltaThreads = 256;
  float* const delta = static_cast<float*>(scratch);
  launch(attention_delta_kernel, grid_stride_blocks(s.B * s.Tq * s.H, kDeltaThreads / kWarpSize),
         dim3(kDeltaThreads), 0, stream, delta, x.d_o, x.o, s);

  const bool vectors = rows_aligned(x, s);
  const int index = choose_tile(kBackwardTiles, backward_shared_bytes, s.D, shared_bytes);
  with_tile(kBackwardTiles, index, [&](auto tile) {
    const AttentionTile& t = kBackwardTiles[index];
    const auto bytes = static_cast<size_t>(backward_shared_bytes(t));
    launch(attention_dkdv_kernel<tile>, one_block_each(s.B * s.Hk * ceil_div(s.Tk, t.rows)),
           dim3(kAttentionThreads), bytes, stream, x, delta, s, vectors);
    launch(attention_dq_kernel<tile>, one_block_each(s.B * s.H * ceil_div(s.Tq, t.rows)),
           dim3(kAttentionThreads), bytes, stream, x, delta, s, vectors);
  });
}

template <class T>
void attention_backward(T* dq, T* dk, T* dv, const T* d_o, const T* o, const acc_t<T>* lse,
                        const T* q, const T* k, const T* v, const AttentionShape& s,
                        const RotaryTable<acc_t<T>>& rotary, void* scratch, Stream stream) {
  const AttentionBackward<T> x{dq, dk, dv, d_o, o, lse, q, k, v};
  if constexpr (std::is_same_v<T, bfloat16>) {
    const char* const refusal = hopper_attention_backward_refusal(x, s);
    if (!s.portable && refusal == nullptr) {
      return hopper_attention_backward(x, s, rotary, scratch, stream);
    }
    note_slow_attention("backward", x, s, refusal, stream);
    mma_attention_backward(device_traits().shared_bytes_per_block, x, s, scratch, stream);
  } else if (const char* const refusal = tf32_attention_refusal(s); refusal == nullptr) {
    note_slow_attention("backward", x, s, nullptr, stream);
    tf32_attention_backward(limits_of(traits_of(stream)), x, s, scratch, stream);
  } else {
    note_slow_attention("backward", x, s, refusal, stream);
    scalar_attention_backward(device_traits().shared_bytes_per_block, x, s, scratch, stream);
  }
  rotate_gradients_back(dq, dk, s, rotary, stream);
}

template decltype(attention_backward<float>) attention_backward<float>;
template decltype(attention_backward<bfloat16>) attention_backward<bfloat16>;

}  // namespace quern::kernels::cuda
