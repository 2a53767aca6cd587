// The backwards of the attentions by mma.sync, of BF16 and of FP32 tensors: their arguments, each
// row's statistics, and the copies to a block with a tile of keys.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/attention/attention_turn.cuh"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

template <class T>
struct TensorBackward : AttentionBackward<T> {
  AttentionShape s;
  float2* statistics;  // (B, H, Tq): logsumexp in units of log2, delta
  uint32_t* ticket;    // blocks started; after it:
  uint32_t* progress;  // (queues, key tiles): steps done
  bool vectors;        // every row allows 16-byte accesses
};

inline constexpr int kDeltaThreads = 256;
inline constexpr int kDeltaLanes = 8;  // a row; 16 bytes each

// statistics (B, H, Tq) = logsumexp in units of log2, delta = sum over D of d_o o. Rows lie heads
// side by side, as in memory. A query that sees no key has logsumexp -inf; all its scores are
// hidden, so any finite number works. Also zeros words [zero, zero_end), and for FP32 tensors dq of
// such queries.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_statistics_kernel(const __grid_constant__ TensorBackward<T> x, uint32_t* zero,
                                const uint32_t* zero_end) {
  constexpr int kVec = kVecSize<T>;
  const AttentionShape& s = x.s;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x;
  for (uint32_t* word = zero + thread; word < zero_end;
       word += static_cast<int64_t>(gridDim.x) * kDeltaThreads) {
    *word = 0;
  }
  const int64_t row = thread / kDeltaLanes;
  const bool exists = row < s.B * s.Tq * s.H;
  const int64_t h = exists ? row % s.H : 0;
  const int64_t i = exists ? row / s.H % s.Tq : 0;
  const int64_t b = exists ? row / s.H / s.Tq : 0;
  const bool blind = s.Tk == 0 || (s.causal && i < s.Tq - s.Tk);
  float delta = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % kDeltaLanes * kVec; exists && d < s.D;
       d += kDeltaLanes * kVec) {
    const T* y = at(x.d_o, s.do_strides, b, i, h) + d;
    const T* z = at(x.o, s.o_strides, b, i, h) + d;
    T* const dq = at(x.dq, s.dq_strides, b, i, h) + d;
    float a[kVec], c[kVec];
    if (x.vectors) {
      load_vec(a, y);
      load_vec(c, z);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        a[e] = to_float(y[e]);
        c[e] = to_float(z[e]);
      }
    }
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      delta = fmaf(a[e], c[e], delta);
      if (std::is_same_v<T, float> && blind) dq[e] = from_float<T>(0.0f);
    }
  }
  delta = warp_reduce<SumOp, kDeltaLanes>(delta, SumOp{});
  if (!exists || threadIdx.x % kDeltaLanes != 0) return;
  const int64_t query = (b * s.H + h) * s.Tq + i;
  const float lse = x.lse[query];
  x.statistics[query] = make_float2(lse == -INFINITY ? 0.0f : lse * kLog2E, delta);
}

// Zeros the bytes [zero, end) of the scratch memory, and fills its statistics.
template <class T>
void launch_statistics(const TensorBackward<T>& x, void* scratch, int64_t zero, int64_t end,
                       Stream stream) {
  auto* const bytes = static_cast<uint8_t*>(scratch);
  const int64_t rows = x.s.B * x.s.Tq * x.s.H;
  launch(attention_statistics_kernel<T>,
         one_block_each(ceil_div(rows + 1, kDeltaThreads / kDeltaLanes)), dim3(kDeltaThreads), 0,
         stream, x, reinterpret_cast<uint32_t*>(bytes + zero),
         reinterpret_cast<const uint32_t*>(bytes + end));
}

// The statistics are the first part of the scratch memory; the counters begin at byte `counters`.
template <class T>
TensorBackward<T> tensor_backward(const AttentionBackward<T>& x, const AttentionShape& s,
                                  void* scratch, int64_t counters) {
  auto* const ticket = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(scratch) + counters);
  return {x, s, static_cast<float2*>(scratch), ticket, ticket + 1, rows_aligned(x, s)};
}

// Starts to copy the block's tiles of K and V. Shared: the layout of its shared memory.
template <class Shared, class T>
__device__ __forceinline__ void load_keys(const TensorBackward<T>& x, const Shared& shared,
                                          const BackwardPlace& place) {
  constexpr AttentionTile tile = Shared::tile;
  const AttentionShape& s = x.s;
  const int rows = static_cast<int>(s.Tk) - place.k0, D = static_cast<int>(s.D);
  load_rows<tile.rows, tile.head_dim, Shared::kThreads>(
      shared.keys, at(x.k, s.k_strides, place.b, place.k0, place.kv_head), s.k_strides[1], rows, D,
      x.vectors);
  load_rows<tile.rows, tile.head_dim, Shared::kThreads>(
      shared.values, at(x.v, s.v_strides, place.b, place.k0, place.kv_head), s.v_strides[1], rows,
      D, x.vectors);
}

// Starts to copy a tile of Q and dO with its statistics to `stage`.
template <class Shared, class T>
__device__ __forceinline__ void load_queries(const TensorBackward<T>& x, uint32_t stage,
                                             const BackwardPlace& place, const QueryWalk& walk) {
  constexpr AttentionTile tile = Shared::tile;
  const AttentionShape& s = x.s;
  const int h = place.first_head + walk.head, q0 = walk.tile * tile.columns;
  const int rows = static_cast<int>(s.Tq) - q0, D = static_cast<int>(s.D);
  load_rows<tile.columns, tile.head_dim, Shared::kThreads>(
      stage, at(x.q, s.q_strides, place.b, q0, h), s.q_strides[1], rows, D, x.vectors);
  load_rows<tile.columns, tile.head_dim, Shared::kThreads>(stage + Shared::kQueryBytes,
                                                           at(x.d_o, s.do_strides, place.b, q0, h),
                                                           s.do_strides[1], rows, D, x.vectors);
  static_assert(tile.columns <= Shared::kThreads);
  const int row = reread_thread();
  if (row >= tile.columns) return;
  const int64_t first = (static_cast<int64_t>(place.b) * s.H + h) * s.Tq + q0;
  copy_async<8>(stage + Shared::statistics_of(row), x.statistics + first + (row < rows ? row : 0),
                row < rows);
}

}  // namespace quern::kernels::cuda
