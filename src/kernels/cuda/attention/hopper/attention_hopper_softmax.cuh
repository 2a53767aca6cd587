// The softmax of scores as wgmma leaves them in registers: each thread holds parts of two rows, 8
// apart, and each row lies in the four threads of a quad.
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper.cuh"
#include "kernels/cuda/primitives/fragment.cuh"

namespace quern::kernels::cuda {

// The online softmax (Milakov and Gimelshein, 2018) of a thread's two rows of S, relative to a base
// per row. A weight is 2^(scale_log2 score - base). The base cancels in the output, O / sum, and in
// the logsumexp, base ln 2 + log(sum). So the base need not be the maximum: it may stay while no
// weight becomes too large, as in FlashAttention-4's conditional rescaling. That compares maxima;
// `update_visible` looks for a large exponent instead, and needs no maximum unless it finds one.
//   A move multiplies earlier sums and outputs by `rescale`, so all of a row refers to one base.
//   `update` sets the base to the maximum of the scores so far, so later sums are at least 1.
//   A weight is at most 2^kBaseSlack, and a row has fewer than 2^30 keys. Sums stay below 2^62, and
//   outputs below 2^62 times the largest value. P in BF16 has the range of a float.
struct RowSoftmax {
  static constexpr float kBaseSlack = 32.0f;  // largest exponent of a weight

  float base[2] = {-INFINITY, -INFINITY};  // in units of log2; -inf before the first key
  float sum[2] = {0.0f, 0.0f};             // of this thread's columns, until `finish`
  float rescale[2];                        // the factor of earlier sums, after the base has moved

  // Replaces scores, masked or not, by weights. The base moves to the maximum so far.
  template <int kRegisters>
  __device__ __forceinline__ void update(float (&scores)[kRegisters], float scale_log2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      move_base(i, fmaxf(row_max(scores, i, -INFINITY) * scale_log2, base[i]));
      // -inf - -inf would be NaN
      to_exponents(scores, i, scale_log2, base[i] == -INFINITY ? 0.0f : base[i]);
      to_weights(scores, i);
    }
  }

  // Called before `update_visible`: sets the base to 0 in rows whose scores were all -inf. Their
  // sum is 0, which any base fits. A base does not fall, so if all later scores of such a row are
  // below -126 in units of log2, their weights vanish.
  __device__ __forceinline__ void make_base_finite() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (base[i] == -INFINITY) base[i] = 0.0f;
    }
  }
  // Replaces scores by weights, where every row has a finite base. If any exponent in the warp is
  // above kBaseSlack or NaN, each base rises to the tile's maximum, unless it is above that
  // already. Returns whether that happened, the same in all lanes of a warp.
  template <int kRegisters>
  __device__ __forceinline__ bool update_visible(float (&scores)[kRegisters], float scale_log2) {
    to_exponents(scores, 0, scale_log2, base[0]);
    to_exponents(scores, 1, scale_log2, base[1]);
    const bool moves = __any_sync(~0u, positive_bits(scores) > __float_as_int(kBaseSlack));
    if (moves) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float before = base[i];
        move_base(i, before + row_max(scores, i, 0.0f));
        to_exponents(scores, i, 1.0f, base[i] - before);  // the rise as rounded into `base`
      }
    }
    to_weights(scores, 0);
    to_weights(scores, 1);
    return moves;
  }

  // Sets `inverse` to 1 / sum, or 0 for a row without keys.
  __device__ __forceinline__ void finish(float (&inverse)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = quad_sum(sum[i]);
      inverse[i] = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i];
    }
  }
  // The logsumexp of row i, after `finish`.
  __device__ __forceinline__ float lse(int i) const {
    return sum[i] == 0.0f ? -INFINITY : fmaf(base[i], kLn2, logf(sum[i]));
  }

 private:
  __device__ __forceinline__ void move_base(int i, float to) {
    rescale[i] = fast_exp2(base[i] - (to == -INFINITY ? 0.0f : to));
    sum[i] *= rescale[i];
    base[i] = to;
  }
  // x = factor x - origin in row i
  template <int kRegisters>
  __device__ __forceinline__ static void to_exponents(float (&x)[kRegisters], int i, float factor,
                                                      float origin) {
#pragma unroll
    for (int c = 2 * i; c < kRegisters; c += 4) {
      x[c] = fmaf(x[c], factor, -origin);
      x[c + 1] = fmaf(x[c + 1], factor, -origin);
    }
  }
  // Replaces exponents by weights, and adds them to the sum.
  template <int kRegisters>
  __device__ __forceinline__ void to_weights(float (&exponents)[kRegisters], int i) {
    float added[2] = {sum[i], 0.0f};  // two chains of dependent instructions
#pragma unroll
    for (int c = 2 * i; c < kRegisters; c += 4) {
      added[0] += exponents[c] = fast_exp2(exponents[c]);
      added[1] += exponents[c + 1] = fast_exp2(exponents[c + 1]);
    }
    sum[i] = added[0] + added[1];
  }
  // The bits of the largest element if it is positive; else 0. As integers, positive floats are in
  // order, the NaN of arithmetic is above them, and negative floats are negative. One instruction
  // takes two elements.
  template <int kRegisters>
  __device__ __forceinline__ static int positive_bits(const float (&x)[kRegisters]) {
    int most[4] = {0, 0, 0, 0};  // chains of dependent instructions
#pragma unroll
    for (int c = 0; c < kRegisters; c += 2) {
      most[c / 2 % 4] =
          __vimax3_s32(most[c / 2 % 4], __float_as_int(x[c]), __float_as_int(x[c + 1]));
    }
    return max(max(most[0], most[1]), max(most[2], most[3]));
  }
};

}  // namespace quern::kernels::cuda
