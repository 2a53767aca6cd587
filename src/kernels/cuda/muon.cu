// Muon's passes over parts of matrices, bound by memory: momentum moves 14 bytes an element,
// squares 2, normalization and copies 4, the update 10. A grid row is a matrix or a part of one;
// each of its kMuonParts blocks has a part, so a sum's order depends on the matrix alone.
// Multiply-adds are fused explicitly, so that vectors and single elements have the same bits.
// Mirroring moves a byte for each element of a symmetric product.
#include "kernels/muon.h"

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/weights.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;  // elements a thread takes at a time
static_assert(kMuonParts <= kThreads);

// Elements of a part, a multiple of kWidth so that every part is aligned as the matrix is.
__host__ __device__ int64_t part_length(int64_t numel) {
  return ceil_div(numel, kMuonParts * kWidth) * kWidth;
}

// Calls f(width, i) for the elements of this block's part, in vectors where `vectors`.
template <class F>
__device__ __forceinline__ void for_part(int64_t numel, bool vectors, F f) {
  const int64_t length = part_length(numel);
  const int64_t begin = blockIdx.x * length;
  const int64_t end = begin + length < numel ? begin + length : numel;
  const int64_t whole = vectors && end > begin ? (end - begin) / kWidth : 0;
  for (int64_t k = threadIdx.x; k < whole; k += kThreads) {
    f(std::integral_constant<int, kWidth>{}, begin + kWidth * k);
  }
  for (int64_t i = begin + kWidth * whole + threadIdx.x; i < end; i += kThreads) {
    f(std::integral_constant<int, 1>{}, i);
  }
}

__global__ void __launch_bounds__(kThreads)
    momentum_kernel(bfloat16* x, float* momentum, const float* grad,
                    const __grid_constant__ MuonMatrices matrices, float mu, bool nesterov,
                    const StepState* state, bool aligned) {
  if (state->finite == 0) return;
  const MuonMatrix one = matrices.rows[blockIdx.y];
  const float* const g = grad + one.grad;
  float* const m = momentum + one.momentum;
  bfloat16* const out = x + one.x;
  const float clip = state->clip;
  const bool vectors = aligned && (one.grad | one.momentum | one.x) % kWidth == 0;
  for_part(one.numel, vectors, [&](auto width, int64_t i) {
    constexpr int kN = width;
    float gradient[kN], mean[kN], result[kN];
    load_vec(gradient, g + i);
    load_vec(mean, m + i);
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      gradient[e] = __fmul_rn(gradient[e], clip);
      mean[e] = fmaf(1.0f - mu, __fsub_rn(gradient[e], mean[e]), mean[e]);
      result[e] = nesterov ? fmaf(mu, __fsub_rn(mean[e], gradient[e]), gradient[e]) : mean[e];
    }
    store_vec(m + i, mean);
    store_vec(out + i, result);
  });
}

__global__ void __launch_bounds__(kThreads)
    squares_kernel(float* squares, const bfloat16* x, const __grid_constant__ MuonMatrices matrices,
                   bool aligned) {
  const MuonMatrix one = matrices.rows[blockIdx.y];
  const bfloat16* const in = x + one.x;
  float sum = 0.0f;
  for_part(one.numel, aligned && one.x % kWidth == 0, [&](auto width, int64_t i) {
    constexpr int kN = width;
    float value[kN];
    load_vec(value, in + i);
#pragma unroll
    for (int e = 0; e < kN; ++e) sum = fmaf(value[e], value[e], sum);
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) squares[blockIdx.y * kMuonParts + blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    normalize_kernel(bfloat16* x, const float* squares,
                     const __grid_constant__ MuonMatrices matrices, float eps, bool aligned) {
  const MuonMatrix one = matrices.rows[blockIdx.y];
  __shared__ float divisor;
  const float part =
      threadIdx.x < kMuonParts ? squares[blockIdx.y * kMuonParts + threadIdx.x] : 0.0f;
  const float sum = block_sum(part);
  if (threadIdx.x == 0) divisor = fmaxf(to_float(from_float<bfloat16>(sqrtf(sum))), eps);
  __syncthreads();
  bfloat16* const out = x + one.x;
  for_part(one.numel, aligned && one.x % kWidth == 0, [&](auto width, int64_t i) {
    constexpr int kN = width;
    float value[kN];
    load_vec(value, out + i);
#pragma unroll
    for (int e = 0; e < kN; ++e) value[e] /= divisor;
    store_vec(out + i, value);
  });
}

template <bool kSplit>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ WeightArrays weights, const bfloat16* x,
                  const __grid_constant__ MuonMatrices matrices, const StepState* state,
                  bool aligned) {
  if (state->finite == 0) return;
  const MuonMatrix one = matrices.rows[blockIdx.y];
  const float lr = state->lr * one.lr_scale;
  const float keep = fmaf(-lr, one.decay, 1.0f), rate = lr * one.adjust;
  const bfloat16* const change = x + one.x;
  for_part(one.numel, aligned && (one.weight | one.x) % kWidth == 0, [&](auto width, int64_t i) {
    constexpr int kN = width;
    float p[kN], o[kN];
    load_weights<kSplit>(p, weights, one.weight + i);
    load_vec(o, change + i);
#pragma unroll
    for (int e = 0; e < kN; ++e) p[e] = fmaf(keep, p[e], -__fmul_rn(rate, o[e]));
    store_weights<kSplit>(weights, one.weight + i, p);
  });
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(bfloat16* to, const bfloat16* from, const __grid_constant__ MuonCopies copies,
                bool aligned) {
  const MuonCopy one = copies.rows[blockIdx.y];
  for_part(one.numel, aligned && (one.to | one.from) % kWidth == 0, [&](auto width, int64_t i) {
    float value[width];
    load_vec(value, from + one.from + i);
    store_vec(to + one.to + i, value);
  });
}

constexpr int kTile = 64;
static_assert(kMuonMirrorMultiple % (2 * kTile) == 0);

// Block (x, y, z) mirrors a tile of matrix z: rows from n / 2 + y kTile, columns from x kTile.
__global__ void __launch_bounds__(kThreads) mirror_kernel(bfloat16* x, int64_t n, int64_t stride) {
  __shared__ uint32_t tile[kTile][kTile / 2 + 1];  // pairs of a row; the last one shifts the banks
  constexpr int kRows = kThreads / kWarpSize;      // at a time, a warp each
  bfloat16* const matrix = x + blockIdx.z * stride;
  const int64_t row = n / 2 + blockIdx.y * kTile, column = blockIdx.x * kTile;
  const int lane = threadIdx.x % kWarpSize, first = threadIdx.x / kWarpSize;
#pragma unroll
  for (int r = first; r < kTile; r += kRows) {
    tile[r][lane] = reinterpret_cast<const uint32_t*>(matrix + (row + r) * n + column)[lane];
  }
  __syncthreads();
#pragma unroll
  for (int c = first; c < kTile; c += kRows) {
    const uint32_t a = tile[2 * lane][c / 2], b = tile[2 * lane + 1][c / 2];
    const uint32_t pair = __byte_perm(a, b, c % 2 == 0 ? 0x5410 : 0x7632);
    reinterpret_cast<uint32_t*>(matrix + (column + c) * n + row)[lane] = pair;
  }
}

dim3 grid_of(int64_t count) {
  constexpr int64_t kMostRows = 65535;
  QUERN_CHECK(count <= kMostRows, "muon: found ", count, " matrices or parts, expected at most ",
              kMostRows);
  return dim3(static_cast<unsigned>(kMuonParts), static_cast<unsigned>(count));
}

}  // namespace

void muon_momentum(bfloat16* x, float* momentum, const float* grad, const MuonMatrices& matrices,
                   float mu, bool nesterov, const StepState* state, Stream stream) {
  launch(momentum_kernel, grid_of(matrices.count), dim3(kThreads), 0, stream, x, momentum, grad,
         matrices, mu, nesterov, state, aligned16({x, momentum, grad}));
}

void muon_squares(float* squares, const bfloat16* x, const MuonMatrices& matrices, Stream stream) {
  launch(squares_kernel, grid_of(matrices.count), dim3(kThreads), 0, stream, squares, x, matrices,
         aligned16({x}));
}

void muon_normalize(bfloat16* x, const float* squares, const MuonMatrices& matrices, float eps,
                    Stream stream) {
  launch(normalize_kernel, grid_of(matrices.count), dim3(kThreads), 0, stream, x, squares, matrices,
         eps, aligned16({x}));
}

void muon_update(const WeightArrays& weights, const bfloat16* x, const MuonMatrices& matrices,
                 const StepState* state, Stream stream) {
  const bool aligned = aligned16(weights) && aligned16({x});
  with_split(weights, [&](auto is_split) {
    launch(update_kernel<is_split>, grid_of(matrices.count), dim3(kThreads), 0, stream, weights, x,
           matrices, state, aligned);
  });
}

void muon_copy(bfloat16* to, const bfloat16* from, const MuonCopies& copies, Stream stream) {
  launch(copy_kernel, grid_of(copies.count), dim3(kThreads), 0, stream, to, from, copies,
         aligned16({to, from}));
}

void muon_mirror(bfloat16* x, int64_t n, int64_t count, int64_t stride, Stream stream) {
  const auto tiles = static_cast<unsigned>(n / 2 / kTile);
  launch(mirror_kernel, dim3(tiles, tiles, static_cast<unsigned>(count)), dim3(kThreads), 0, stream,
         x, n, stride);
}

}  // namespace quern::kernels::cuda
