// Weights in two parts. A split or a join moves 8 bytes a weight, a rounding 6.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/weights.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;  // weights a thread takes at a time

template <bool kWithLow>
__global__ void __launch_bounds__(kThreads)
    split_kernel(bfloat16* copies, uint16_t* low, const float* weights, int64_t n, bool aligned) {
  for_each_vec<kWidth>(n, aligned, [&](auto width, int64_t i) {
    float x[width];
    load_vec(x, weights + i);
    store_parts<kWithLow>(copies, low, i, x);
  });
}

__global__ void __launch_bounds__(kThreads)
    join_kernel(float* weights, const bfloat16* copies, const uint16_t* low, int64_t n,
                bool aligned) {
  for_each_vec<kWidth>(n, aligned, [&](auto width, int64_t i) {
    float x[width];
    load_parts(x, copies, low, i);
    store_vec(weights + i, x);
  });
}

// One block for each run.
__global__ void __launch_bounds__(kThreads)
    join_runs_kernel(float* weights, const bfloat16* copies, const uint16_t* low,
                     const WeightRun* runs) {
  const WeightRun run = runs[blockIdx.x];
  for (int64_t i = threadIdx.x; i < run.count; i += kThreads) {
    weights[run.to + i] = joined_weight(copies[run.begin + i], low[run.begin + i]);
  }
}

}  // namespace

void split_weights(bfloat16* copies, uint16_t* low, const float* weights, int64_t n,
                   Stream stream) {
  launch(low != nullptr ? split_kernel<true> : split_kernel<false>,
         grid_stride_blocks(n, kThreads * kWidth), dim3(kThreads), 0, stream, copies, low, weights,
         n, aligned16({copies, low, weights}));
}

void join_weights(float* weights, const bfloat16* copies, const uint16_t* low, int64_t n,
                  Stream stream) {
  launch(join_kernel, grid_stride_blocks(n, kThreads * kWidth), dim3(kThreads), 0, stream, weights,
         copies, low, n, aligned16({weights, copies, low}));
}

void join_runs(float* weights, const bfloat16* copies, const uint16_t* low, const WeightRun* runs,
               int64_t count, Stream stream) {
  launch(join_runs_kernel, one_block_each(count), dim3(kThreads), 0, stream, weights, copies, low,
         runs);
}

}  // namespace quern::kernels::cuda
