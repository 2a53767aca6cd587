// out = the sum of the ranks' parts, in their order. Memory-bound: reads every part once.
#include "kernels/cuda/primitives/row.cuh"
#include "kernels/rank_sum.h"

namespace quern::kernels::cuda {

namespace {

__global__ void __launch_bounds__(kRowThreads)
    rank_sum_kernel(float* out, const float* before, const float* parts, int ranks, int64_t stride,
                    int64_t n, bool vectors) {
  for_each_vec<kVecSize<float>>(n, vectors, [&](auto width, int64_t i) {
    constexpr int kWidth = width;
    float sum[kWidth], part[kWidth];
    load_vec(sum, parts + i);
    if (before != nullptr) {
      load_vec(part, before + i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] = part[e] + sum[e];
    }
    for (int p = 1; p < ranks; ++p) {
      load_vec(part, parts + p * stride + i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += part[e];
    }
    store_vec(out + i, sum);
  });
}

}  // namespace

void rank_sum(float* out, const float* before, const float* parts, int ranks, int64_t stride,
              int64_t n, Stream stream) {
  const bool vectors = stride % kVecSize<float> == 0 && aligned16({out, before, parts});
  launch(rank_sum_kernel,
         grid_stride_blocks(n, vectors ? kRowThreads * kVecSize<float> : kRowThreads),
         dim3(kRowThreads), 0, stream, out, before, parts, ranks, stride, n, vectors);
}

}  // namespace quern::kernels::cuda
