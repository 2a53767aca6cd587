// Random fills of n elements: element i is a function of (seed, offset + i), see base/philox.h, so
// the values are the CPU's. Bound by integer and double arithmetic.
#include "kernels/random.h"

#include "base/philox.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void uniform_kernel(T* x, int64_t n, double low, double high, PhiloxKey key) {
  for_each_index(n, [&](int64_t i) {
    const uint64_t counter = key.offset + static_cast<uint64_t>(i);
    x[i] = from_float<T>(philox_uniform<float>(key.seed, counter, low, high));
  });
}

template <class T>
__global__ void normal_kernel(T* x, int64_t n, double mean, double std, double truncate,
                              PhiloxKey key) {
  for_each_index(n, [&](int64_t i) {
    const uint64_t counter = key.offset + static_cast<uint64_t>(i);
    const double z = truncate > 0.0 ? philox_truncated_normal(key.seed, counter, truncate)
                                    : philox_normal(key.seed, counter);
    x[i] = from_float<T>(static_cast<float>(fma(std, z, mean)));
  });
}

__global__ void integers_kernel(int32_t* x, int64_t n, uint32_t bound, PhiloxKey key) {
  for_each_index(n, [&](int64_t i) {
    const uint64_t counter = key.offset + static_cast<uint64_t>(i);
    x[i] = static_cast<int32_t>(philox_integer(key.seed, counter, bound));
  });
}

}  // namespace

template <class T>
void uniform(T* x, int64_t n, double low, double high, PhiloxKey key, Stream stream) {
  launch(uniform_kernel<T>, grid_stride_blocks(n, kThreads), kThreads, 0, stream, x, n, low, high,
         key);
}

template <class T>
void normal(T* x, int64_t n, double mean, double std, double truncate, PhiloxKey key,
            Stream stream) {
  launch(normal_kernel<T>, grid_stride_blocks(n, kThreads), kThreads, 0, stream, x, n, mean, std,
         truncate, key);
}

void random_integers(int32_t* x, int64_t n, int32_t bound, PhiloxKey key, Stream stream) {
  launch(integers_kernel, grid_stride_blocks(n, kThreads), kThreads, 0, stream, x, n,
         static_cast<uint32_t>(bound), key);
}

template decltype(uniform<float>) uniform<float>;
template decltype(uniform<bfloat16>) uniform<bfloat16>;
template decltype(normal<float>) normal<float>;
template decltype(normal<bfloat16>) normal<bfloat16>;

}  // namespace quern::kernels::cuda
