// Sums and maxima over the middle extent of (outer, n, inner); bound by memory. inner = 1: some
// lanes of a warp, a warp or a block read each row. inner > 1: a block has 32 neighbouring columns,
// or for sums 32 16-byte vectors of columns, read by up to 32 rows of threads whose results are
// merged in shared memory. A sum with too few rows or columns to fill the GPU is cut along n, and
// its partial sums are summed again. The order of each result is fixed.
#include "kernels/reduce.h"

#include <type_traits>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/strided.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMaxThreads = 1024;
constexpr int64_t kWarpRow = 1024;  // the longest row that one warp takes
constexpr unsigned kAllLanes = 0xffffffffu;

// Sum of the elements, or of their squares.
template <bool kSquares>
struct SumOf {
  float value;

  static __device__ __forceinline__ SumOf identity() { return {0.0f}; }
  __device__ __forceinline__ void take(float x, int64_t) { value += kSquares ? x * x : x; }
  __device__ __forceinline__ void merge(const SumOf& other) { value += other.value; }
  __device__ __forceinline__ SumOf shuffled(int mask) const {
    return {__shfl_xor_sync(kAllLanes, value, mask)};
  }
};
using Sum = SumOf<false>;
using SumOfSquares = SumOf<true>;

// The largest value and its first index; NaN counts as the largest.
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

SumParts whole(const ReduceShape& s) {
  return {1, s.n};
}

// Merges the results of blockDim.x threads: a power of two up to 32, or a multiple of 32 in a 1-d
// block. All threads of the block take part; thread 0 of the group gets the result.
template <class Result>
__device__ __forceinline__ Result group_merge(Result r) {
  __shared__ Result partial[kWarpSize];
  for (unsigned mask = min(blockDim.x, unsigned{kWarpSize}) / 2; mask > 0; mask /= 2) {
    r.merge(r.shuffled(mask));
  }
  if (blockDim.x <= kWarpSize) return r;
  const unsigned lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  __syncthreads();  // the previous call's readers are done
  if (lane == 0) partial[warp] = r;
  __syncthreads();
  r = lane < blockDim.x / kWarpSize ? partial[lane] : Result::identity();
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) r.merge(r.shuffled(mask));
  return r;
}

template <class T, bool kSquares>
__device__ __forceinline__ void write(T* y, int64_t*, int64_t at, const SumOf<kSquares>& sum,
                                      float scale) {
  y[at] = from_float<T>(sum.value * scale);
}
template <class T>
__device__ __forceinline__ void write(T* y, int64_t* index, int64_t at, const Max& max, float) {
  y[at] = from_float<T>(max.value);
  index[at] = max.index;
}

// One thread's result, of blockDim.x threads, for n neighbours. Several loads are in flight at a
// time. Each element of a vector has its own chain: short ones instead of a long one.
template <class Result, class T>
__device__ __forceinline__ Result take_row(const T* from, int64_t n, bool vector) {
  constexpr int N = kVecSize<T>, kBatch = 16 / N;
  Result result[N];
#pragma unroll
  for (int j = 0; j < N; ++j) result[j] = Result::identity();
  const int64_t vectors = vector ? n / N : 0, step = blockDim.x;
  for (int64_t first = threadIdx.x; first < vectors; first += kBatch * step) {
    float group[kBatch][N];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * step < vectors) load_vec(group[b], from + (first + b * step) * N);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * step >= vectors) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) result[j].take(group[b][j], (first + b * step) * N + j);
    }
  }
  for (int64_t j = vectors * N + threadIdx.x; j < n; j += step) {
    result[0].take(to_float(from[j]), j);
  }
#pragma unroll
  for (int j = 1; j < N; ++j) result[0].merge(result[j]);
  return result[0];
}

// inner = 1: y[row, part]. blockDim is (lanes a row, rows a block), or 1-d with a row a block.
template <class Result, class Y, class T>
__global__ void __launch_bounds__(kMaxThreads)
    reduce_rows(Y* y, int64_t* index, const T* x, int64_t rows, int64_t n, SumParts parts,
                float scale, bool vector) {
  const int64_t results = rows * parts.count;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < results;
       first += static_cast<int64_t>(gridDim.x) * blockDim.y) {
    const int64_t at = first + threadIdx.y;
    Result result = Result::identity();
    if (at < results) {
      const int64_t row = parts.count == 1 ? at : at / parts.count;
      const int64_t begin = (at - row * parts.count) * parts.length;
      result = take_row<Result>(x + row * n + begin, min(parts.length, n - begin), vector);
    }
    result = group_merge(result);
    if (threadIdx.x == 0 && at < results) write(y, index, at, result, scale);
  }
}

// inner > 1: y[o, part, i], the part being blockIdx.y. blockDim is (32 columns, up to 32 row lanes,
// a power of two).
template <class Result, class Y, class T>
__global__ void __launch_bounds__(kMaxThreads)
    reduce_columns(Y* y, int64_t* index, const T* x, ReduceShape s, SumParts parts, float scale) {
  __shared__ Result partial[kWarpSize][kWarpSize];
  const int64_t columns = s.outer * s.inner;
  const int64_t begin = blockIdx.y * parts.length, end = min(begin + parts.length, s.n);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kWarpSize; first < columns;
       first += static_cast<int64_t>(gridDim.x) * kWarpSize) {
    const int64_t column = first + threadIdx.x, o = column / s.inner, i = column % s.inner;
    Result result = Result::identity();
    if (column < columns) {
      const T* const from = x + o * s.n * s.inner + i;
#pragma unroll 4
      for (int64_t j = begin + threadIdx.y; j < end; j += blockDim.y) {
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
      write(y, index, (o * parts.count + blockIdx.y) * s.inner + i, partial[0][threadIdx.x], scale);
    }
  }
}

// The same for sums, if the columns come in whole vectors: a thread takes those of one vector.
template <class Result, class Y, class T>
__global__ void __launch_bounds__(kMaxThreads)
    sum_vector_columns(Y* y, const T* x, ReduceShape s, SumParts parts, float scale) {
  constexpr int N = kVecSize<T>, kColumns = N * kWarpSize;
  __shared__ float partial[kWarpSize][kColumns];
  const int64_t columns = s.outer * s.inner;
  const int64_t begin = blockIdx.y * parts.length, end = min(begin + parts.length, s.n);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns; first < columns;
       first += static_cast<int64_t>(gridDim.x) * kColumns) {
    const int64_t column = first + threadIdx.x * N;
    Result result[N];
#pragma unroll
    for (int e = 0; e < N; ++e) result[e] = Result::identity();
    if (column < columns) {
      const int64_t o = column / s.inner;
      const T* const from = x + o * s.n * s.inner + column % s.inner;
#pragma unroll 4
      for (int64_t j = begin + threadIdx.y; j < end; j += blockDim.y) {
        float values[N];
        unpack<T>(values, load_raw<N>(from + j * s.inner));
#pragma unroll
        for (int e = 0; e < N; ++e) result[e].take(values[e], j);
      }
    }
    __syncthreads();  // the previous columns' readers are done
#pragma unroll
    for (int e = 0; e < N; ++e) partial[threadIdx.y][threadIdx.x * N + e] = result[e].value;
    __syncthreads();
    for (unsigned c = threadIdx.y * kWarpSize + threadIdx.x; c < kColumns;
         c += blockDim.y * kWarpSize) {
      if (first + c >= columns) break;
      float sum = partial[0][c];
      for (unsigned row = 1; row < blockDim.y; ++row) sum += partial[row][c];
      const int64_t o = (first + c) / s.inner, i = (first + c) % s.inner;
      y[(o * parts.count + blockIdx.y) * s.inner + i] = from_float<Y>(sum * scale);
    }
  }
}

// Threads for each row of n elements: some of a warp for short ones, so that none idles.
template <class T>
dim3 row_block(int64_t n) {
  if (n > kWarpRow) return dim3(n <= 32 * kThreads ? kThreads : kMaxThreads);
  unsigned lanes = kWarpSize;
  while (lanes > 1 && lanes / 2 * 16 >= n) lanes /= 2;  // 16 elements each
  return dim3(lanes, kThreads / lanes);
}

template <class Result, class Y, class T>
void reduce(Y* y, int64_t* index, const T* x, const ReduceShape& s, const SumParts& parts,
            float scale, Stream stream) {
  if (s.outer * s.inner == 0) return;
  if (s.inner == 1) {
    const bool vector = aligned16({x}) && (s.outer == 1 || s.n % kVecSize<T> == 0);
    const dim3 block = row_block<T>(parts.length);
    launch(reduce_rows<Result, Y, T>, grid_stride_blocks(s.outer * parts.count, block.y), block, 0,
           stream, y, index, x, s.outer, s.n, parts, scale, vector);
    return;
  }
  unsigned lanes = 1;
  while (lanes < kWarpSize && lanes * 4 < parts.length) lanes *= 2;  // at least 4 elements each
  const auto grid_of = [&](int columns) {
    dim3 grid = grid_stride_blocks(s.outer * s.inner, columns);
    grid.y = static_cast<unsigned>(parts.count);
    return grid;
  };
  constexpr bool kSums = !std::is_same_v<Result, Max> && !std::is_same_v<T, float16>;
  if constexpr (kSums) {
    if (aligned16({x}) && s.inner % kVecSize<T> == 0) {
      return launch(sum_vector_columns<Result, Y, T>, grid_of(kWarpSize * kVecSize<T>),
                    dim3(kWarpSize, lanes), 0, stream, y, x, s, parts, scale);
    }
  }
  launch(reduce_columns<Result, Y, T>, grid_of(kWarpSize), dim3(kWarpSize, lanes), 0, stream, y,
         index, x, s, parts, scale);
}

// First: Sum or SumOfSquares. Partial sums, then the sum of those.
template <class First, class Y, class T>
void sum_in_parts(Y* y, const T* x, const ReduceShape& s, float scale, void* scratch,
                  Stream stream) {
  const SumParts parts = cut_sum(s);
  if (parts.count == 1) return reduce<First>(y, nullptr, x, s, parts, scale, stream);
  auto* const partial = static_cast<float*>(scratch);
  reduce<First>(partial, nullptr, x, s, parts, 1.0f, stream);
  const ReduceShape rest{s.outer, parts.count, s.inner};
  reduce<Sum>(y, nullptr, partial, rest, whole(rest), scale, stream);
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
  for_each_index(s.outer * s.n * s.inner, [&](int64_t e) {
    const int64_t i = e % s.inner, j = e / s.inner % s.n, o = e / s.inner / s.n;
    const int64_t from = o * s.inner + i;
    dx[e] = index[from] == j ? dy[from] : from_float<T>(0.0f);
  });
}

}  // namespace

template <class Y, class T>
void sum_forward(Y* y, const T* x, const ReduceShape& s, double scale, void* scratch,
                 Stream stream) {
  sum_in_parts<Sum>(y, x, s, static_cast<float>(scale), scratch, stream);
}

template <class T>
void sum_squares_forward(T* y, const T* x, const ReduceShape& s, double scale, void* scratch,
                         Stream stream) {
  sum_in_parts<SumOfSquares>(y, x, s, static_cast<float>(scale), scratch, stream);
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
  for_each_grouped_part<kVecSize<T>>(
      all, {address(dx), address(dy)}, {16, 16}, [&](auto width, const StridedIndex<2>& at) {
        launch(sum_backward_kernel<width, T>, grid_stride_blocks(at.count, kThreads), kThreads, 0,
               stream, dx, dy, static_cast<float>(scale), at);
      });
}

template <class T>
void max_forward(T* y, int64_t* index, const T* x, const ReduceShape& s, Stream stream) {
  reduce<Max>(y, index, x, s, whole(s), 1.0f, stream);
}

template <class T>
void max_backward(T* dx, const T* dy, const int64_t* index, const ReduceShape& s, Stream stream) {
  launch(max_backward_kernel<T>, grid_stride_blocks(s.outer * s.n * s.inner, kThreads), kThreads, 0,
         stream, dx, dy, index, s);
}

#define QUERN_INSTANTIATE(T)                                        \
  template decltype(sum_forward<T, T>) sum_forward<T, T>;           \
  template decltype(sum_squares_forward<T>) sum_squares_forward<T>; \
  template decltype(sum_backward<T>) sum_backward<T>;               \
  template decltype(max_forward<T>) max_forward<T>;                 \
  template decltype(max_backward<T>) max_backward<T>;

QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)

#undef QUERN_INSTANTIATE

template decltype(sum_forward<float, bfloat16>) sum_forward<float, bfloat16>;

}  // namespace quern::kernels::cuda
