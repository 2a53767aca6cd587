// Sums and maxima over the middle extent of (outer, n, inner); bound by memory. inner = 1: a warp
// or a block reads each row. inner > 1: a block has 32 neighbouring columns, read by up to 32 rows
// of threads whose results meet in shared memory. Each result belongs to one block and has one
// order.
#include "kernels/reduce.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/strided.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxThreads = 1024;
constexpr unsigned kAllLanes = 0xffffffffu;

struct Sum {
  float value;

  static __device__ __forceinline__ Sum identity() { return {0.0f}; }
  __device__ __forceinline__ void take(float x, int64_t) { value += x; }
  __device__ __forceinline__ void merge(const Sum& other) { value += other.value; }
  __device__ __forceinline__ Sum shuffled(int mask) const {
    return {__shfl_xor_sync(kAllLanes, value, mask)};
  }
};

// The largest value and the first place of it; NaN is larger than all.
struct Max {
  float value;
  int64_t index;

  static __device__ __forceinline__ Max identity() { return {-INFINITY, INT64_MAX}; }
  __device__ __forceinline__ void take(float x, int64_t j) { merge({x, j}); }
  __device__ __forceinline__ void merge(const Max& other) {
    const bool nan = value != value, other_nan = other.value != other.value;
    const bool equal = value == other.value || (nan && other_nan);
    const bool larger = other.value > value || (other_nan && !nan);
    if (larger || (equal && other.index < index)) *this = other;
  }
  __device__ __forceinline__ Max shuffled(int mask) const {
    return {__shfl_xor_sync(kAllLanes, value, mask),
            __shfl_xor_sync(kAllLanes, static_cast<long long>(index), mask)};
  }
};

// Every lane gets the combination of all 32.
template <class Result>
__device__ __forceinline__ Result warp_merge(Result r) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) r.merge(r.shuffled(mask));
  return r;
}

template <class T>
__device__ __forceinline__ void write(T* y, int64_t*, int64_t at, const Sum& sum, float scale) {
  y[at] = from_float<T>(sum.value * scale);
}
template <class T>
__device__ __forceinline__ void write(T* y, int64_t* index, int64_t at, const Max& max, float) {
  y[at] = from_float<T>(max.value);
  index[at] = max.index;
}

// inner = 1. blockDim is (32, rows a block) or (threads, 1).
template <class Result, class T>
__global__ void __launch_bounds__(kMaxThreads)
    reduce_rows(T* y, int64_t* index, const T* x, int64_t rows, int64_t n, float scale,
                bool vector) {
  constexpr int N = kVecSize<T>;
  __shared__ Result partial[kWarpSize];
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += step) {
    const T* const from = x + row * n;
    Result result[N];  // one a vector lane: N short chains instead of a long one
#pragma unroll
    for (int j = 0; j < N; ++j) result[j] = Result::identity();
    const int64_t vectors = vector ? n / N : 0;
    for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
      float group[N];
      load_vec(group, from + v * N);
#pragma unroll
      for (int j = 0; j < N; ++j) result[j].take(group[j], v * N + j);
    }
    for (int64_t j = vectors * N + threadIdx.x; j < n; j += blockDim.x) {
      result[0].take(to_float(from[j]), j);
    }
#pragma unroll
    for (int j = 1; j < N; ++j) result[0].merge(result[j]);
    Result total = warp_merge(result[0]);
    if (blockDim.x > kWarpSize) {  // then blockDim.y is 1
      const unsigned lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
      __syncthreads();  // the previous row's readers are done
      if (lane == 0) partial[warp] = total;
      __syncthreads();
      total = warp_merge(lane < blockDim.x / kWarpSize ? partial[lane] : Result::identity());
    }
    if (threadIdx.x == 0) write(y, index, row, total, scale);
  }
}

// inner > 1. blockDim is (32 columns, up to 32 row lanes, a power of two).
template <class Result, class T>
__global__ void __launch_bounds__(kMaxThreads)
    reduce_columns(T* y, int64_t* index, const T* x, ReduceShape s, float scale) {
  __shared__ Result partial[kWarpSize][kWarpSize];
  const int64_t columns = s.outer * s.inner;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kWarpSize; first < columns;
       first += static_cast<int64_t>(gridDim.x) * kWarpSize) {
    const int64_t column = first + threadIdx.x;
    Result result = Result::identity();
    if (column < columns) {
      const T* const from = x + column / s.inner * s.n * s.inner + column % s.inner;
#pragma unroll 4
      for (int64_t j = threadIdx.y; j < s.n; j += blockDim.y) {
        result.take(to_float(from[j * s.inner]), j);
      }
    }
    __syncthreads();  // the previous columns' readers are done
    partial[threadIdx.y][threadIdx.x] = result;
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y < half) {
        partial[threadIdx.y][threadIdx.x].merge(partial[threadIdx.y + half][threadIdx.x]);
      }
    }
    if (threadIdx.y == 0 && column < columns) {
      write(y, index, column, partial[0][threadIdx.x], scale);
    }
  }
}

template <class Result, class T>
void reduce(T* y, int64_t* index, const T* x, const ReduceShape& s, float scale, Stream stream) {
  if (s.outer * s.inner == 0) return;
  if (s.inner == 1) {
    const bool vector = aligned16({x}) && s.n % kVecSize<T> == 0;
    const bool narrow = s.n <= kWarpSize * 32;  // short enough for one warp
    const dim3 block = narrow ? dim3(kWarpSize, kThreads / kWarpSize)
                              : dim3(s.n <= 32 * kThreads ? kThreads : kMaxThreads);
    launch(reduce_rows<Result, T>, grid_stride_blocks(s.outer, block.y), block, 0, stream, y, index,
           x, s.outer, s.n, scale, vector);
    return;
  }
  unsigned lanes = 1;
  while (lanes < kWarpSize && lanes * 4 < s.n) lanes *= 2;  // at least 4 elements each
  launch(reduce_columns<Result, T>, grid_stride_blocks(s.outer * s.inner, kWarpSize),
         dim3(kWarpSize, lanes), 0, stream, y, index, x, s, scale);
}

constexpr int kDx = 0, kDy = 1;

template <int W, class T>
__global__ void sum_backward_kernel(T* dx, const T* dy, float scale,
                                    const __grid_constant__ StridedIndex<2> at) {
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < at.count; i += threads) {
    int64_t offset[2];
    at.offsets(i, offset);
    float v[W];
    load_or_repeat(v, dy + offset[kDy], at.repeats(kDy));
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] *= scale;
    store_vec(dx + offset[kDx], v);
  }
}

template <class T>
__global__ void max_backward_kernel(T* dx, const T* dy, const int64_t* index, ReduceShape s) {
  const int64_t total = s.outer * s.n * s.inner;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < total;
       e += threads) {
    const int64_t i = e % s.inner, j = e / s.inner % s.n, o = e / s.inner / s.n;
    const int64_t from = o * s.inner + i;
    dx[e] = index[from] == j ? dy[from] : from_float<T>(0.0f);
  }
}

}  // namespace

template <class T>
void sum_forward(T* y, const T* x, const ReduceShape& s, double scale, Stream stream) {
  reduce<Sum>(y, nullptr, x, s, static_cast<float>(scale), stream);
}

template <class T>
void sum_backward(T* dx, const T* dy, const ReduceShape& s, double scale, Stream stream) {
  Strided<2> all;
  all.ndim = 3;
  const int64_t shape[3] = {s.outer, s.n, s.inner};
  const int64_t dx_strides[3] = {s.n * s.inner, s.inner, 1}, dy_strides[3] = {s.inner, 0, 1};
  for (int d = 0; d < 3; ++d) {
    all.shape[d] = shape[d];
    all.strides[kDx][d] = dx_strides[d];
    all.strides[kDy][d] = dy_strides[d];
  }
  if (all.numel() == 0) return;
  all = simplified(all);
  constexpr int N = kVecSize<T>;
  const uintptr_t address[2] = {reinterpret_cast<uintptr_t>(dx), reinterpret_cast<uintptr_t>(dy)};
  const bool grouped = group_by(N, all, address, {16, 16}, /*may_repeat=*/true);
  for_each_part(all, [&](const StridedIndex<2>& at) {
    launch(grouped ? sum_backward_kernel<N, T> : sum_backward_kernel<1, T>,
           grid_stride_blocks(at.count, kThreads), kThreads, 0, stream, dx, dy,
           static_cast<float>(scale), at);
  });
}

template <class T>
void max_forward(T* y, int64_t* index, const T* x, const ReduceShape& s, Stream stream) {
  reduce<Max>(y, index, x, s, 1.0f, stream);
}

template <class T>
void max_backward(T* dx, const T* dy, const int64_t* index, const ReduceShape& s, Stream stream) {
  launch(max_backward_kernel<T>, grid_stride_blocks(s.outer * s.n * s.inner, kThreads), kThreads, 0,
         stream, dx, dy, index, s);
}

#define QUERN_INSTANTIATE(T)                                                        \
  template void sum_forward<T>(T*, const T*, const ReduceShape&, double, Stream);   \
  template void sum_backward<T>(T*, const T*, const ReduceShape&, double, Stream);  \
  template void max_forward<T>(T*, int64_t*, const T*, const ReduceShape&, Stream); \
  template void max_backward<T>(T*, const T*, const int64_t*, const ReduceShape&, Stream);

QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)

#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
