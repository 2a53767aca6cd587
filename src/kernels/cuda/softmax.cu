// Softmax and log-softmax over (rows, cols); bound by memory. A short row belongs to one warp, a
// longer one to a block that holds it in registers and so reads it once. Only rows beyond
// kMaxThreads * kMaxItems elements are read twice. Reductions are fixed trees.
#include "kernels/softmax.h"

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kWarpsPerBlock = 8;  // when a row belongs to a warp
// The most elements of a row that a thread may hold. Many mean many loads in flight and few threads
// to wait for each other. The backward holds two rows; single loads need more addresses.
template <int W>
inline constexpr int kMaxItems = W == 1 ? 16 : 32;
template <int W>
inline constexpr int kMaxBackwardItems = kMaxItems<W> / 2;

// A row in registers: thread t of the row's threads holds groups of W neighbours, kItems / W groups
// a block-wide stride apart. Beyond the row's end x is `padding`.
template <int W, int kItems, class T>
__device__ __forceinline__ void load_groups(float (&x)[kItems], const T* row, int cols,
                                            float padding) {
  constexpr int kGroups = kItems / W;
  Raw<T, W> raw[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {  // all loads before the first use
    const int column = static_cast<int>(g * blockDim.x + threadIdx.x) * W;
    raw[g] = fill_raw<T, W>(padding);
    if (column < cols) raw[g] = load_raw<W>(row + column);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    float group[W];
    unpack<T>(group, raw[g]);
#pragma unroll
    for (int j = 0; j < W; ++j) x[g * W + j] = group[j];
  }
}

template <int W, int kItems, class T>
__device__ __forceinline__ void store_groups(T* row, const float (&x)[kItems], int cols) {
#pragma unroll
  for (int g = 0; g < kItems / W; ++g) {
    const int column = static_cast<int>(g * blockDim.x + threadIdx.x) * W;
    float group[W];
#pragma unroll
    for (int j = 0; j < W; ++j) group[j] = x[g * W + j];
    if (column < cols) store_raw(row + column, group);
  }
}

// The shift of a row's elements: the maximum, or 0 for a row of -inf, whose exponentials are then 0
// and not NaN.
__device__ __forceinline__ float shift_of(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

// From a shifted x to y: exp(x) / sum, or x - log(sum). An empty sum gives 0, or -inf for kLog.
struct Normaliser {
  float factor, log_sum;
  __device__ explicit Normaliser(float sum)
      : factor(sum == 0.0f ? 0.0f : 1.0f / sum), log_sum(sum == 0.0f ? 0.0f : logf(sum)) {}
};

template <bool kLog, int W, int kItems, class T>
__global__ void __launch_bounds__(kMaxThreads)
    forward_kernel(T* y, const T* x, int64_t rows, int cols) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += step) {
    float v[kItems];
    load_groups<W>(v, x + row * cols, cols, -INFINITY);
    float maximum = v[0];  // fmaxf skips NaN; a NaN shows in the sum
#pragma unroll
    for (int i = 1; i < kItems; ++i) maximum = fmaxf(maximum, v[i]);
    const float shift = shift_of(block_max(maximum));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      v[i] -= shift;
      const float e = exp_for<T>(v[i]);
      sum += e;
      if constexpr (!kLog) v[i] = e;
    }
    const Normaliser normaliser(block_sum(sum));
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      v[i] = kLog ? v[i] - normaliser.log_sum : v[i] * normaliser.factor;
    }
    store_groups<W>(y + row * cols, v, cols);
  }
}

// softmax: dx = y (dy - sum(y dy)); log-softmax: dx = dy - exp(y) sum(dy).
template <bool kLog>
__device__ __forceinline__ float summand(float y, float dy) {
  return kLog ? dy : y * dy;
}
template <bool kLog, class T>
__device__ __forceinline__ float gradient(float y, float dy, float sum) {
  return kLog ? dy - exp_for<T>(y) * sum : y * (dy - sum);
}

template <bool kLog, int W, int kItems, class T>
__global__ void __launch_bounds__(kMaxThreads)
    backward_kernel(T* dx, const T* y, const T* dy, int64_t rows, int cols) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += step) {
    float v[kItems], g[kItems];
    load_groups<W>(v, y + row * cols, cols, 0.0f);
    load_groups<W>(g, dy + row * cols, cols, 0.0f);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sum += summand<kLog>(v[i], g[i]);
    sum = block_sum(sum);
#pragma unroll
    for (int i = 0; i < kItems; ++i) v[i] = gradient<kLog, T>(v[i], g[i], sum);
    store_groups<W>(dx + row * cols, v, cols);
  }
}

// Rows that no block can hold: the running maximum and sum of each thread (Milakov and Gimelshein,
// 2018), merged, then a second pass that writes.
template <bool kLog, class T>
__global__ void __launch_bounds__(kMaxThreads)
    forward_long_kernel(T* y, const T* x, int64_t rows, int64_t cols) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* const from = x + row * cols;
    float maximum = -INFINITY, sum = 0.0f;
    for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
      const float v = to_float(from[i]);
      const float larger = MaxOp{}(maximum, v);
      sum = sum * expf(maximum - shift_of(larger)) + expf(v - shift_of(larger));
      maximum = larger;
    }
    const float shift = shift_of(block_max(maximum));
    const Normaliser normaliser(block_sum(sum * expf(maximum - shift)));
    for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
      const float v = to_float(from[i]) - shift;
      const float out = kLog ? v - normaliser.log_sum : expf(v) * normaliser.factor;
      y[row * cols + i] = from_float<T>(out);
    }
  }
}

template <bool kLog, class T>
__global__ void __launch_bounds__(kMaxThreads)
    backward_long_kernel(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0.0f;
    for (int64_t i = row * cols + threadIdx.x; i < (row + 1) * cols; i += blockDim.x) {
      sum += summand<kLog>(to_float(y[i]), to_float(dy[i]));
    }
    sum = block_sum(sum);
    for (int64_t i = row * cols + threadIdx.x; i < (row + 1) * cols; i += blockDim.x) {
      dx[i] = from_float<T>(gradient<kLog, T>(to_float(y[i]), to_float(dy[i]), sum));
    }
  }
}

// Calls start(items, grid, block) with the items that a thread holds of a row of `cols`. A warp
// takes a row while kMost suffice, else as many threads as needed. False beyond one block.
template <int kMost, class Start>
bool hold_rows(int64_t rows, int64_t cols, Start start) {
  if (cols > kMaxThreads * kMost) return false;
  const int64_t threads = ceil_div(ceil_div(cols, kMost), kWarpSize) * kWarpSize;
  const int rows_per_block = threads == kWarpSize ? kWarpsPerBlock : 1;
  const dim3 grid = grid_stride_blocks(rows, rows_per_block);
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows_per_block));
  if constexpr (kMost > 8) {
    if (cols <= kWarpSize * (kMost / 2)) {
      start(std::integral_constant<int, kMost / 2>{}, grid, block);
      return true;
    }
  }
  start(std::integral_constant<int, kMost>{}, grid, block);
  return true;
}

template <bool kLog, int W, class T>
bool forward_held(T* y, const T* x, int64_t rows, int64_t cols, Stream stream) {
  return hold_rows<kMaxItems<W>>(rows, cols, [&](auto items, dim3 grid, dim3 block) {
    launch(forward_kernel<kLog, W, items, T>, grid, block, 0, stream, y, x, rows,
           static_cast<int>(cols));
  });
}

template <bool kLog, class T>
void forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream) {
  if (rows == 0 || cols == 0) return;
  constexpr int W = kVecSize<T>;
  const bool vector = cols % W == 0 && aligned16({y, x});
  if (vector ? forward_held<kLog, W>(y, x, rows, cols, stream)
             : forward_held<kLog, 1>(y, x, rows, cols, stream)) {
    return;
  }
  launch(forward_long_kernel<kLog, T>, grid_stride_blocks(rows, 1), kMaxThreads, 0, stream, y, x,
         rows, cols);
}

template <bool kLog, int W, class T>
bool backward_held(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, Stream stream) {
  return hold_rows<kMaxBackwardItems<W>>(rows, cols, [&](auto items, dim3 grid, dim3 block) {
    launch(backward_kernel<kLog, W, items, T>, grid, block, 0, stream, dx, y, dy, rows,
           static_cast<int>(cols));
  });
}

template <bool kLog, class T>
void backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, Stream stream) {
  if (rows == 0 || cols == 0) return;
  constexpr int W = kVecSize<T>;
  const bool vector = cols % W == 0 && aligned16({dx, y, dy});
  if (vector ? backward_held<kLog, W>(dx, y, dy, rows, cols, stream)
             : backward_held<kLog, 1>(dx, y, dy, rows, cols, stream)) {
    return;
  }
  launch(backward_long_kernel<kLog, T>, grid_stride_blocks(rows, 1), kMaxThreads, 0, stream, dx, y,
         dy, rows, cols);
}

}  // namespace

template <class T>
void softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, bool log, Stream stream) {
  log ? forward<true>(y, x, rows, cols, stream) : forward<false>(y, x, rows, cols, stream);
}
template <class T>
void softmax_online_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream) {
  if (rows == 0 || cols == 0) return;
  launch(forward_long_kernel<false, T>, grid_stride_blocks(rows, 1), kMaxThreads, 0, stream, y, x,
         rows, cols);
}
template <class T>
void softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, bool log,
                      Stream stream) {
  log ? backward<true>(dx, y, dy, rows, cols, stream)
      : backward<false>(dx, y, dy, rows, cols, stream);
}

#define QUERN_INSTANTIATE(T)                                              \
  template decltype(softmax_forward<T>) softmax_forward<T>;               \
  template decltype(softmax_online_forward<T>) softmax_online_forward<T>; \
  template decltype(softmax_backward<T>) softmax_backward<T>;

QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)

#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
