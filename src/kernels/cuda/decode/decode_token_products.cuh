// The products of decode_token.cu: the block's rows of w times the rows of x in shared memory, and
// the outputs. Every sum has the order of decode_linear.cu.
#pragma once

#include "kernels/cuda/decode/decode_token_plan.cuh"

namespace quern::kernels::cuda {

// Multiplies the block's pairs with the rows in xs, to sums (pairs, parts, rows, kPair). Measured
// slower: two pairs at a time, no work for an absent second row, and outputs sent by the warp that
// has all of them.
template <int kRows, class Ring>
__device__ __forceinline__ void multiply(float* sums, const Ring& ring, typename Ring::Place& place,
                                         const TokenLinear& linear, const WarpShare& share,
                                         const char* xs, int rows) {
  constexpr int kSteps = Ring::kSteps;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int stride = linear.steps * kStepBytes;
  sums += warp * rows * kPair;
#pragma unroll 1
  for (int i = 0; i < share.pairs; ++i, sums += kTokenWarps * rows * kPair) {
    RowProducts<bfloat16, kRows> products;
#pragma unroll 1
    for (int s = 0; s < share.count; s += kSteps) {
      const int slot = ring.index(warp, place), steps = share.count - s;
      const char* const weights = ring.slots + slot * Ring::kSlotBytes + lane * 16;
      const char* const x = xs + (share.begin + s) * kStepBytes + lane * 16;
      const int chunks = linear.chunks - (share.begin + s) * kStepChunks - lane;
      ring.full[slot].wait(place.parity);
      uint4 w[kSteps][kPair];
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
#pragma unroll
        for (int j = 0; j < kPair; ++j) {
          w[u][j] = make_uint4(0, 0, 0, 0);  // behind the row's end
          if (u < steps && u * kStepChunks < chunks) {
            w[u][j] =
                *reinterpret_cast<const uint4*>(weights + j * Ring::kRowBytes + u * kStepBytes);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kSteps; ++u) {
        if (u < steps) products.add(w[u], x + u * kStepBytes, stride, rows);
      }
      __syncwarp();
      if (lane == 0) ring.empty[slot].arrive();
      place.advance();
    }
    products.store(sums, rows);
  }
  TokenBarrier::sync();
}

// Calls emit(m, n, first, second) for the outputs n and n + 1 of row m, rounded to bfloat16.
template <class Emit>
__device__ __forceinline__ void for_each_output(const float* sums, const TokenLinear& linear,
                                                int rows, Emit emit) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < linear.units * rows; i += kTokenThreads) {
    const int unit = rows == 1 ? i : i / rows, m = i - unit * rows;
    float total[2][kPair] = {};  // SwiGLU has two pairs of rows, of one output each
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      if (pair == 1 && !linear.swiglu) continue;
      const int at = linear.swiglu ? 2 * unit + pair : unit;
#pragma unroll 2
      for (int p = 0; p < linear.parts; ++p) {
        const float* const part = sums + ((at * linear.parts + p) * rows + m) * kPair;
#pragma unroll
        for (int j = 0; j < kPair; ++j) total[pair][j] += part[j];
      }
    }
    const int n = 2 * (linear.first + unit);
    if (linear.swiglu) {
      emit(m, n, rounded<bfloat16>(decode_swiglu<bfloat16>(total[0][0], total[0][1])),
           rounded<bfloat16>(decode_swiglu<bfloat16>(total[1][0], total[1][1])));
    } else {
      emit(m, n, rounded<bfloat16>(total[0][0]), rounded<bfloat16>(total[0][1]));
    }
  }
}

}  // namespace quern::kernels::cuda
