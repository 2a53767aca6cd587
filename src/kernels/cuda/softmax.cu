// Softmax and log-softmax over rows; bound by memory. A short row belongs to one warp, a longer one
// to a block that holds it in registers and so reads it once; only rows beyond kMaxThreads *
// kMaxItems elements are read twice. Every reduction is a fixed tree over the threads.
#include "kernels/softmax.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kFewItems = 8, kMaxItems = 16;  // elements of a row that a thread may hold
constexpr int kMaxThreads = 1024;
constexpr int kWarpsPerBlock = 8;  // when a row belongs to a warp

// A row in registers. Thread t of the row's threads holds groups of W neighbours, kItems / W groups
// a block-wide stride apart; beyond the row's end x is `padding`.
template <int W, int kItems>
struct RowSlice {
  // Calls visit(slot, column) for the first slot of each group that starts inside the row.
  template <class Visit>
  static __device__ __forceinline__ void for_each(int64_t cols, Visit visit) {
#pragma unroll
    for (int slot = 0; slot < kItems; slot += W) {
      const int64_t column = (static_cast<int64_t>(slot / W) * blockDim.x + threadIdx.x) * W;
      if (column < cols) visit(slot, column);
    }
  }
};

template <int kItems, class T>
__device__ __forceinline__ void load_row(float (&x)[kItems], const T* row, int64_t cols,
                                         bool vector, float padding) {
  constexpr int W = kVecSize<T>;
#pragma unroll
  for (int i = 0; i < kItems; ++i) x[i] = padding;
  if (vector) {
    RowSlice<W, kItems>::for_each(cols, [&](int slot, int64_t column) {
      float group[W];
      load_vec(group, row + column);
#pragma unroll
      for (int j = 0; j < W; ++j) x[slot + j] = group[j];
    });
  } else {
    RowSlice<1, kItems>::for_each(
        cols, [&](int slot, int64_t column) { x[slot] = to_float(row[column]); });
  }
}

template <int kItems, class T>
__device__ __forceinline__ void store_row(T* row, const float (&x)[kItems], int64_t cols,
                                          bool vector) {
  constexpr int W = kVecSize<T>;
  if (vector) {
    RowSlice<W, kItems>::for_each(cols, [&](int slot, int64_t column) {
      float group[W];
#pragma unroll
      for (int j = 0; j < W; ++j) group[j] = x[slot + j];
      store_vec(row + column, group);
    });
  } else {
    RowSlice<1, kItems>::for_each(
        cols, [&](int slot, int64_t column) { row[column] = from_float<T>(x[slot]); });
  }
}

// What a row's elements are shifted by: the maximum, and 0 for a row of -inf, whose exponentials
// then are 0 and not NaN.
__device__ __forceinline__ float shift_of(float maximum) {
  return maximum == -INFINITY ? 0.0f : maximum;
}

// From a shifted x to y: exp(x) / sum, or x - log(sum). An empty sum gives 0, or -inf for kLog.
struct Normaliser {
  float factor, log_sum;
  __device__ explicit Normaliser(float sum)
      : factor(sum == 0.0f ? 0.0f : 1.0f / sum), log_sum(sum == 0.0f ? 0.0f : logf(sum)) {}
};

template <bool kLog, int kItems, class T>
__global__ void __launch_bounds__(kMaxThreads)
    forward_kernel(T* y, const T* x, int64_t rows, int64_t cols, bool vector) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += step) {
    float v[kItems];
    load_row(v, x + row * cols, cols, vector, -INFINITY);
    float maximum = v[0];
#pragma unroll
    for (int i = 1; i < kItems; ++i) maximum = MaxOp{}(maximum, v[i]);
    const float shift = shift_of(block_max(maximum));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      v[i] -= shift;
      const float e = expf(v[i]);
      sum += e;
      if constexpr (!kLog) v[i] = e;
    }
    const Normaliser normaliser(block_sum(sum));
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      v[i] = kLog ? v[i] - normaliser.log_sum : v[i] * normaliser.factor;
    }
    store_row(y + row * cols, v, cols, vector);
  }
}

// softmax: dx = y (dy - sum(y dy)); log-softmax: dx = dy - exp(y) sum(dy).
template <bool kLog>
__device__ __forceinline__ float summand(float y, float dy) {
  return kLog ? dy : y * dy;
}
template <bool kLog>
__device__ __forceinline__ float gradient(float y, float dy, float sum) {
  return kLog ? dy - expf(y) * sum : y * (dy - sum);
}

template <bool kLog, int kItems, class T>
__global__ void __launch_bounds__(kMaxThreads)
    backward_kernel(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, bool vector) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += step) {
    float v[kItems], g[kItems];
    load_row(v, y + row * cols, cols, vector, 0.0f);
    load_row(g, dy + row * cols, cols, vector, 0.0f);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sum += summand<kLog>(v[i], g[i]);
    sum = block_sum(sum);
#pragma unroll
    for (int i = 0; i < kItems; ++i) v[i] = gradient<kLog>(v[i], g[i], sum);
    store_row(dx + row * cols, v, cols, vector);
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
      dx[i] = from_float<T>(gradient<kLog>(to_float(y[i]), to_float(dy[i]), sum));
    }
  }
}

struct RowLaunch {
  dim3 grid, block;
};
RowLaunch row_launch(int64_t rows, int64_t cols, int items) {
  const int64_t threads = ceil_div(ceil_div(cols, items), kWarpSize) * kWarpSize;
  const int rows_per_block = threads == kWarpSize ? kWarpsPerBlock : 1;
  return {grid_stride_blocks(rows, rows_per_block),
          dim3(static_cast<unsigned>(threads), static_cast<unsigned>(rows_per_block))};
}

template <bool kLog, class T>
void forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream) {
  if (rows == 0 || cols == 0) return;
  const bool vector = cols % kVecSize<T> == 0 && aligned16({y, x});
  if (cols <= kMaxThreads * kFewItems) {
    const auto [grid, block] = row_launch(rows, cols, kFewItems);
    launch(forward_kernel<kLog, kFewItems, T>, grid, block, 0, stream, y, x, rows, cols, vector);
  } else if (cols <= kMaxThreads * kMaxItems) {
    const auto [grid, block] = row_launch(rows, cols, kMaxItems);
    launch(forward_kernel<kLog, kMaxItems, T>, grid, block, 0, stream, y, x, rows, cols, vector);
  } else {
    launch(forward_long_kernel<kLog, T>, grid_stride_blocks(rows, 1), kMaxThreads, 0, stream, y, x,
           rows, cols);
  }
}

template <bool kLog, class T>
void backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, Stream stream) {
  if (rows == 0 || cols == 0) return;
  const bool vector = cols % kVecSize<T> == 0 && aligned16({dx, y, dy});
  if (cols <= kMaxThreads * kFewItems) {
    const auto [grid, block] = row_launch(rows, cols, kFewItems);
    launch(backward_kernel<kLog, kFewItems, T>, grid, block, 0, stream, dx, y, dy, rows, cols,
           vector);
  } else if (cols <= kMaxThreads * kMaxItems) {
    const auto [grid, block] = row_launch(rows, cols, kMaxItems);
    launch(backward_kernel<kLog, kMaxItems, T>, grid, block, 0, stream, dx, y, dy, rows, cols,
           vector);
  } else {
    launch(backward_long_kernel<kLog, T>, grid_stride_blocks(rows, 1), kMaxThreads, 0, stream, dx,
           y, dy, rows, cols);
  }
}

}  // namespace

template <class T>
void softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream) {
  forward<false>(y, x, rows, cols, stream);
}
template <class T>
void softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols, Stream stream) {
  backward<false>(dx, y, dy, rows, cols, stream);
}
template <class T>
void log_softmax_forward(T* y, const T* x, int64_t rows, int64_t cols, Stream stream) {
  forward<true>(y, x, rows, cols, stream);
}
template <class T>
void log_softmax_backward(T* dx, const T* y, const T* dy, int64_t rows, int64_t cols,
                          Stream stream) {
  backward<true>(dx, y, dy, rows, cols, stream);
}

#define QUERN_INSTANTIATE(T)                                                           \
  template void softmax_forward<T>(T*, const T*, int64_t, int64_t, Stream);            \
  template void softmax_backward<T>(T*, const T*, const T*, int64_t, int64_t, Stream); \
  template void log_softmax_forward<T>(T*, const T*, int64_t, int64_t, Stream);        \
  template void log_softmax_backward<T>(T*, const T*, const T*, int64_t, int64_t, Stream);

QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)

#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
