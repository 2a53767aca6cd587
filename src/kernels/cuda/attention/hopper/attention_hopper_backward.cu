// Flash attention for Hopper, backward: dQ (B, Tq, H, D), dK and dV (B, Tk, Hk, D). One kernel does
// the products, transposed. One before it computes delta, one after it makes dQ from sums.
//   S^T = K Q^T,  P^T = exp2(S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K.
// A block owns a tile of keys and walks over the queries of the heads that share it. P^T goes from
// registers straight into the next product. dS^T goes to shared memory, from which a separate
// warpgroup computes dQ. Many blocks add to dQ (attention_hopper_query_sums.cuh). Bound by the
// tensor cores, 10 Tq Tk D operations a head, half of that when causal, and by the power they take;
// at D 192 and 256 by L2.
#include <algorithm>

#include "kernels/common/rotate_gradients.h"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_dq.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_results.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_scores.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"
#include "kernels/cuda/primitives/tma.cuh"

namespace quern::kernels::cuda {

namespace {

template <int kTile>
__global__ void __launch_bounds__(kBackwardWarpgroups* kWarpgroupSize, 1)
    hopper_attention_backward_kernel(const __grid_constant__ BackwardArguments x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = BackwardTile<kTile>;
  extern __shared__ uint8_t hopper_tiles[];
  __shared__ typename Tile::Barriers barriers;
  auto& tiles = *reinterpret_cast<typename Tile::Tiles*>(align_tiles(hopper_tiles));
  const int thread = static_cast<int>(threadIdx.x), warpgroup = start_block(barriers);
  if (warpgroup == 0) {
    give_registers<Tile::kCopyRegisters>();
    const int warp = __shfl_sync(~0u, thread / kWarpSize, 0);
    if (warp == 0) {
      load_items<kTile>(tiles, barriers, x);
    } else if (warp <= Tile::kDqBuffers && thread % kWarpSize == 0) {
      add_in_turn<kTile>(tiles, barriers, x, warp - 1);
    }
  } else if (warpgroup <= kScoreWarpgroups) {
    take_registers<Tile::kScoreRegisters>();
    if constexpr (Tile::kRoles != BackwardRoles::by_result) {
      ScoreWarpgroup<kTile> scores{tiles, barriers, x, warpgroup - 1};
      scores.run();
    } else if (warpgroup == 1) {
      ResultWarpgroup<kTile, BackwardResult::dv> dv{tiles, barriers, x};
      dv.run();
    } else {
      ResultWarpgroup<kTile, BackwardResult::dk> dk{tiles, barriers, x};
      dk.run();
    }
  } else {
    give_registers<Tile::kDqRegisters>();
    DqWarpgroup<kTile> gradients{tiles, barriers, x};
    gradients.run();
  }
#endif
}

// Runs first: computes delta, 4 threads a row of dO and O, and sets all counters to 0.
template <int kD>
__global__ void __launch_bounds__(256)
    hopper_attention_delta_kernel(const __grid_constant__ BackwardScratch scratch, int64_t counters,
                                  const bfloat16* d_o, const bfloat16* o,
                                  const __grid_constant__ AttentionShape s, bool o_vectors) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread < counters) scratch.turns[thread] = 0;
  const int64_t row = thread / 4;
  const bool exists = row < s.B * s.Tq * s.H;
  const int64_t h = row % s.H, t = row / s.H % s.Tq, b = row / s.H / s.Tq;
  float sum = 0.0f;
  if (exists) {
    sum = part_of_delta<kD>(at(d_o, s.do_strides, b, t, h), at(o, s.o_strides, b, t, h),
                            static_cast<int>(s.D), o_vectors);
  }
  sum = quad_sum(sum);
  if (exists && threadIdx.x % 4 == 0) scratch.delta[(b * s.H + h) * s.Tq + t] = sum;
}

constexpr int kGradientHeads = 4;

// Runs last: dQ from its sums, 0 where a query sees no key. A block has a tile of queries, a
// warpgroup one head of it, so that heads share the tile's rows of the rotary tables.
template <int kD>
__global__ void __launch_bounds__(kGradientHeads* kWarpgroupSize, 2)
    hopper_attention_query_gradients_kernel(const __grid_constant__ BackwardArguments x) {
  const int64_t tile = blockIdx.x % x.plan.query_tiles, b = blockIdx.x / x.plan.query_tiles;
  const int64_t h = int64_t{blockIdx.y} * kGradientHeads + threadIdx.x / kWarpgroupSize;
  if (h >= x.s.H) return;
  const auto token = static_cast<int>(tile) * kBackwardQueries;
  const QueryRows rows{at(x.dq, x.s.dq_strides, b, token, h),
                       x.s.dq_strides[1],
                       token,
                       static_cast<int>(x.s.Tq),
                       static_cast<int>(x.s.D),
                       static_cast<float>(x.s.scale)};
  const FragmentPlace fragment(static_cast<int>(threadIdx.x) % kWarpgroupSize);
  if (x.plan.last_key_tile(static_cast<int>(tile)) < 0) {
    const float zeros[kD / 2] = {};
    store_fragment(rows.dq, rows.stride, rows.tokens - rows.token, rows.columns, zeros, 0.0f,
                   fragment);
    return;
  }
  const int64_t place = (b * x.s.H + h) * x.plan.query_tiles + tile;
  const float4* sums =
      reinterpret_cast<const float4*>(x.scratch.dq) + place * (kBackwardQueries * kD / 4);
  finish_queries<kD>(rows, sums, x.rotary, fragment);
}

bool kernel_runs(int64_t D) {
  bool runs = false;
  with_tile(kHopperBackwardTiles, hopper_backward_tile(D), [&](auto index) {
    static const bool this_runs =
        hopper_kernel_runs(reinterpret_cast<const void*>(hopper_attention_backward_kernel<index>),
                           BackwardTile<index>::kSharedBytes);
    runs = this_runs;
  });
  return runs;
}

}  // namespace

const char* hopper_attention_backward_refusal(const AttentionBackward<bfloat16>& x,
                                              const AttentionShape& s) {
  if (s.D <= kPortableBackwardHead) return kPortableIsFaster;
  if (!hopper_extents_fit(s) || s.H > int64_t{kGradientHeads} * kMaxGridYZ) return kHopperExtents;
  if (!tma_takes(x.q, s.q_strides, s.B, s.Tq, s.H, s.D) ||
      !tma_takes(x.k, s.k_strides, s.B, s.Tk, s.Hk, s.D) ||
      !tma_takes(x.v, s.v_strides, s.B, s.Tk, s.Hk, s.D) ||
      !tma_takes(x.d_o, s.do_strides, s.B, s.Tq, s.H, s.D) || !rows_aligned(x.dq, s.dq_strides) ||
      !rows_aligned(x.dk, s.dk_strides) || !rows_aligned(x.dv, s.dv_strides)) {
    return kHopperRows;
  }
  return kernel_runs(s.D) ? nullptr : kNoHopper;
}

void hopper_attention_backward(const AttentionBackward<bfloat16>& tensors, const AttentionShape& s,
                               const RotaryTable<float>& rotary, void* scratch, Stream stream) {
  check_attention(s);
  with_tile(kHopperBackwardTiles, hopper_backward_tile(s.D), [&](auto index) {
    using Tile = BackwardTile<index>;
    constexpr int kDeltaThreads = 256;
    const BackwardPlan plan(s);
    const BackwardExtents extents(s, plan);
    const bool padded = s.D < Tile::kD;  // then a thread does not have both of a pair's columns
    const BackwardScratch memory(extents, scratch);
    const int64_t threads = std::max(4 * s.B * s.Tq * s.H, extents.counters());
    launch(hopper_attention_delta_kernel<Tile::kD>,
           one_block_each(ceil_div(threads, kDeltaThreads)), dim3(kDeltaThreads), 0, stream, memory,
           extents.counters(), tensors.d_o, tensors.o, s, rows_aligned(tensors.o, s.o_strides));
    const BackwardArguments x{
        .q = make_tile_map(tensors.q, s.q_strides, s.B, s.Tq, s.H, s.D, kBackwardQueries, Tile::kD),
        .k = make_tile_map(tensors.k, s.k_strides, s.B, s.Tk, s.Hk, s.D, Tile::kKeys, Tile::kD),
        .v = make_tile_map(tensors.v, s.v_strides, s.B, s.Tk, s.Hk, s.D, Tile::kKeys, Tile::kD),
        .d_o = make_tile_map(tensors.d_o, s.do_strides, s.B, s.Tq, s.H, s.D, kBackwardQueries,
                             Tile::kD),
        .s = s,
        .scale_log2 = static_cast<float>(s.scale * double{kLog2E}),
        .padded = padded,
        .plan = plan,
        .dq = tensors.dq,
        .dk = tensors.dk,
        .dv = tensors.dv,
        .lse = tensors.lse,
        .scratch = memory,
        .rotary = padded ? RotaryTable<float>{} : rotary};
    launch_persistent(hopper_attention_backward_kernel<index>, plan.items, kBackwardWarpgroups - 1,
                      Tile::kSharedBytes, stream, x);
    launch(hopper_attention_query_gradients_kernel<Tile::kD>,
           dim3(static_cast<unsigned>(s.B * plan.query_tiles),
                static_cast<unsigned>(ceil_div(s.H, kGradientHeads))),
           dim3(kGradientHeads * kWarpgroupSize), 0, stream, x);
    if (padded) rotate_gradients_back(tensors.dq, tensors.dk, s, rotary, stream);
  });
}

}  // namespace quern::kernels::cuda
