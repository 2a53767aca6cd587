// GELU of a product plus bias, bound by memory: forward 2, backward 4 row lengths. In the library's
// product the bias would cost 15 to 20 %, and its gradient another pass. Here both are free, since
// a thread keeps its columns while it walks down the rows.
#include "kernels/bias_gelu.h"

#include "kernels/common/pointwise_math.h"
#include "kernels/cuda/primitives/column_sum.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kRowsAtOnce = 8;  // of threads in a block
constexpr int kAhead = 2;       // rows that a thread loads before it uses the first

// A block takes 32 W columns, W a thread, and the rows of slice blockIdx.y. Backward: y may be
// null, and partial[slice], unless null, gets the sum of dx. A thread reads before it writes.
template <bool kBackward, class T, int W>
__global__ void __launch_bounds__(kRowsAtOnce* kWarpSize)
    bias_gelu_kernel(T* dx, T* y, float* partial, const T* dy, const T* x, const T* b, int64_t rows,
                     int64_t F, int64_t rows_each) {
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kWarpSize + threadIdx.x) * W;
  const int64_t begin = blockIdx.y * rows_each + threadIdx.y;
  const int64_t end = c < F ? min((blockIdx.y + 1) * rows_each, rows) : 0;
  constexpr GeluTanh gelu;
  float bias[W] = {}, sums[W] = {};
  if (b != nullptr && c < F) unpack<T>(bias, load_raw<W>(b + c));
  for (int64_t first = begin; first < end; first += kAhead * kRowsAtOnce) {
    Raw<T, W> raw_x[kAhead] = {}, raw_dy[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t row = first + i * kRowsAtOnce;
      if (row >= end) continue;
      raw_x[i] = load_raw<W>(x + row * F + c);
      if constexpr (kBackward) raw_dy[i] = load_raw<W>(dy + row * F + c);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t row = first + i * kRowsAtOnce;
      if (row >= end) continue;
      float from[W], grad[W];
      unpack<T>(from, raw_x[i]);
      if constexpr (kBackward) unpack<T>(grad, raw_dy[i]);
#pragma unroll
      for (int e = 0; e < W; ++e) {
        from[e] += bias[e];
        if constexpr (kBackward) {
          grad[e] = gelu.backward(from[e], 0.0f, grad[e]);
          sums[e] += grad[e];
        }
        from[e] = gelu.forward(from[e]);
      }
      if constexpr (kBackward) store_raw(dx + row * F + c, grad);
      if (!kBackward || y != nullptr) store_raw(y + row * F + c, from);
    }
  }
  if constexpr (kBackward) {
    if (partial == nullptr) return;
    __shared__ float others[kRowsAtOnce][kWarpSize * W];
#pragma unroll
    for (int e = 0; e < W; ++e) others[threadIdx.y][threadIdx.x * W + e] = sums[e];
    __syncthreads();
    const int64_t block_column = static_cast<int64_t>(blockIdx.x) * kWarpSize * W;
    for (int i = threadIdx.y * kWarpSize + threadIdx.x; i < kWarpSize * W;
         i += kRowsAtOnce * kWarpSize) {
      if (block_column + i >= F) break;
      float sum = 0.0f;
#pragma unroll
      for (int row = 0; row < kRowsAtOnce; ++row) sum += others[row][i];
      partial[blockIdx.y * F + block_column + i] = sum;
    }
  }
}

template <bool kBackward, class T>
void start(T* dx, T* y, float* partial, const T* dy, const T* x, const T* b, int64_t rows,
           int64_t F, Stream stream) {
  const int64_t slices = bias_gelu_slices(rows, F);
  const bool vectors = F % kVecSize<T> == 0 && aligned16({dx, y, dy, x, b});
  dim3 grid = one_block_each(ceil_div(F, kWarpSize * (vectors ? kVecSize<T> : 1)));
  grid.y = static_cast<unsigned>(slices);
  launch(vectors ? bias_gelu_kernel<kBackward, T, kVecSize<T>> : bias_gelu_kernel<kBackward, T, 1>,
         grid, dim3(kWarpSize, kRowsAtOnce), 0, stream, dx, y, partial, dy, x, b, rows, F,
         ceil_div(rows, slices));
}

}  // namespace

template <class T>
void bias_gelu_forward(T* y, const T* x, const T* b, int64_t rows, int64_t F, Stream stream) {
  start<false, T>(nullptr, y, nullptr, nullptr, x, b, rows, F, stream);
}

template <class T>
void bias_gelu_backward(T* dx, T* y, acc_t<T>* db, const T* dy, const T* x, const T* b,
                        int64_t rows, int64_t F, bool add_db, void* scratch, Stream stream) {
  float* const partial = db == nullptr ? nullptr : static_cast<float*>(scratch);
  start<true, T>(dx, y, partial, dy, x, b, rows, F, stream);
  if (db != nullptr) {
    fold_rows({db, add_db}, {}, partial, bias_gelu_slices(rows, F), F, stream);
  }
}

template decltype(bias_gelu_forward<float>) bias_gelu_forward<float>;
template decltype(bias_gelu_forward<bfloat16>) bias_gelu_forward<bfloat16>;
template decltype(bias_gelu_backward<float>) bias_gelu_backward<float>;
template decltype(bias_gelu_backward<bfloat16>) bias_gelu_backward<bfloat16>;

}  // namespace quern::kernels::cuda
