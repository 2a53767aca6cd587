// out = the sum of the ranks' parts, in their order, and the partial sums of its norm.
// Memory-bound: reads every part once.
#include "kernels/cuda/primitives/row.cuh"
#include "kernels/optimizer.h"
#include "kernels/rank_sum.h"

namespace quern::kernels::cuda {

namespace {

// A warp takes a chunk of the norm at a time. Its lanes take the elements in the order of
// sum_squares, which depends on the alignment of `out`.
__global__ void __launch_bounds__(kRowThreads)
    rank_sum_kernel(float* out, float* squares, const float* before, const float* parts, int ranks,
                    int64_t stride, int64_t n, bool aligned, bool vectors) {
  constexpr int kVectors = kNormChunk / (4 * kWarpSize);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warps = int64_t{gridDim.x} * (kRowThreads / kWarpSize);
  const int64_t first = int64_t{blockIdx.x} * (kRowThreads / kWarpSize) + threadIdx.x / kWarpSize;
  for (int64_t chunk = first; chunk * kNormChunk < n; chunk += warps) {
    const int64_t begin = chunk * kNormChunk, count = min(kNormChunk, n - begin);
    float square = 0.0f;
    if (aligned && count == kNormChunk) {
      const int64_t own = begin + 4 * lane;
      float sum[kVectors][4], part[kVectors][4];
      const auto load = [&](float(&to)[kVectors][4], const float* from) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          const float* const x = from + own + 4 * kWarpSize * j;
          if (vectors) {
            load_vec(to[j], x);
          } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) to[j][e] = x[e];
          }
        }
      };
      const auto add = [&] {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[j][e] += part[j][e];
        }
      };
      load(sum, parts);
      if (before != nullptr) {
        load(part, before);
        add();  // the same bits in either order
      }
      for (int p = 1; p < ranks; ++p) {
        load(part, parts + p * stride);
        add();
      }
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        store_vec(out + own + 4 * kWarpSize * j, sum[j]);
#pragma unroll
        for (int e = 0; e < 4; ++e) square = fmaf(sum[j][e], sum[j][e], square);
      }
    } else {
      for (int64_t i = begin + lane; i < begin + count; i += kWarpSize) {
        float sum = before != nullptr ? before[i] + parts[i] : parts[i];
        for (int p = 1; p < ranks; ++p) sum += parts[p * stride + i];
        out[i] = sum;
        square = fmaf(sum, sum, square);
      }
    }
    if (squares == nullptr) continue;
    square = warp_sum(square);
    if (lane == 0) squares[chunk] = square;
  }
}

}  // namespace

void rank_sum(float* out, void* squares, const float* before, const float* parts, int ranks,
              int64_t stride, int64_t n, Stream stream) {
  constexpr int64_t kElementsABlock = kNormChunk * (kRowThreads / kWarpSize);
  const bool aligned = aligned16({out});
  const bool vectors = stride % kVecSize<float> == 0 && aligned16({before, parts});
  launch(rank_sum_kernel, grid_stride_blocks(n, kElementsABlock), dim3(kRowThreads), 0, stream, out,
         static_cast<float*>(squares), before, parts, ranks, stride, n, aligned, vectors);
}

}  // namespace quern::kernels::cuda
