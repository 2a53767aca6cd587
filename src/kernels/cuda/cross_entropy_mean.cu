// The mean of the row losses (n) over the rows whose target counts. One block, so that the order of
// the sum is fixed. It moves a few hundred KB at most and is bound by latency, so every thread has
// many loads in flight.
#include "kernels/cross_entropy.h"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kInFlight = 16;  // elements of each array that a thread waits for at a time

// Exact up to 2^24 targets; beyond, rounded as any sum in float.
struct Tally {
  float loss = 0.0f;   // sum of the row losses
  float count = 0.0f;  // targets that are not ignored
};

// Tally over the block, for every thread. Without losses (null) only the targets are counted.
__device__ Tally tally_rows(const float* row_loss, const int32_t* targets, int64_t n,
                            int32_t ignore_index) {
  float sum = 0.0f;
  int64_t count = 0;
  for (int64_t first = threadIdx.x; first < n; first += kInFlight * kThreads) {
    float loss[kInFlight];
    int32_t target[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t i = first + u * kThreads;
      loss[u] = i < n && row_loss != nullptr ? row_loss[i] : 0.0f;
      target[u] = i < n ? targets[i] : ignore_index;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      sum += loss[u];
      count += target[u] != ignore_index;
    }
  }
  return {block_sum(sum), block_sum(static_cast<float>(count))};
}

__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_mean_kernel(float* loss, float* inverse_count, const float* row_loss,
                              const int32_t* targets, int64_t n, int32_t ignore_index) {
  const Tally rows = tally_rows(row_loss, targets, n, ignore_index);
  if (threadIdx.x != 0) return;
  loss[0] = rows.count == 0.0f ? 0.0f : rows.loss / rows.count;
  inverse_count[0] = rows.count == 0.0f ? 0.0f : 1.0f / rows.count;
}

__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_scale_kernel(float* scale, const int32_t* targets, int64_t n, float loss_scale,
                               int32_t ignore_index) {
  const float count = tally_rows(nullptr, targets, n, ignore_index).count;
  if (threadIdx.x == 0) scale[0] = count == 0.0f ? 0.0f : loss_scale / count;
}

}  // namespace

template <class A>
void cross_entropy_mean(A* loss, A* inverse_count, const A* row_loss, const int32_t* targets,
                        int64_t n, int32_t ignore_index, Stream stream) {
  launch(cross_entropy_mean_kernel, dim3(1), dim3(kThreads), 0, stream, loss, inverse_count,
         row_loss, targets, n, ignore_index);
}

template <class A>
void cross_entropy_scale(A* scale, const int32_t* targets, int64_t n, double loss_scale,
                         int32_t ignore_index, Stream stream) {
  launch(cross_entropy_scale_kernel, dim3(1), dim3(kThreads), 0, stream, scale, targets, n,
         static_cast<float>(loss_scale), ignore_index);
}

template decltype(cross_entropy_mean<float>) cross_entropy_mean<float>;
template decltype(cross_entropy_scale<float>) cross_entropy_scale<float>;

}  // namespace quern::kernels::cuda
