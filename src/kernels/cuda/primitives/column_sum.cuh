// Sums over the rows of a (rows, C) array, for weight gradients. Two stages in a fixed order: each
// slice of the rows is summed into its row of the scratch, then those rows are summed. The slices
// depend only on `rows`, so the bits do not depend on the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

inline constexpr int kColumnSumRows = 8;  // rows that a block of 32 columns reads at once

// out[slice, c] = sum of term(row, c) over the slice's rows. Grid: (C / 32, slices).
template <class Term>
__global__ void column_sum_kernel(float* out, Term term, int64_t rows, int64_t C,
                                  int64_t rows_each) {
  __shared__ float partial[kColumnSumRows][kWarpSize];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarpSize + threadIdx.x;
  const int64_t begin = blockIdx.y * rows_each;
  const int64_t end = begin + rows_each < rows ? begin + rows_each : rows;
  float sum = 0.0f;
  if (c < C) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kColumnSumRows) sum += term(row, c);
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= C) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kColumnSumRows; ++i) total += partial[i][threadIdx.x];
  out[blockIdx.y * C + c] = total;
}

// Where the sum of each column goes, += when `add`. Null: nowhere.
struct FoldTarget {
  float* out = nullptr;
  bool add = false;
};

// first.out[c] = sum over slices of partial[slice, c]; `second` takes the next `slices` rows of
// partial. A block of 32 x 32 threads takes 32 columns; each thread has kAtOnce loads under way, so
// that up to 256 slices cost one wait.
template <int kAtOnce>
__global__ void __launch_bounds__(kWarpSize* kWarpSize)
    fold_rows_kernel(FoldTarget first, FoldTarget second, const float* partial, int64_t slices,
                     int64_t C) {
  __shared__ float sums[kWarpSize][kWarpSize + 1];  // a column of it lies in 32 different banks
  const FoldTarget target = blockIdx.y == 0 ? first : second;
  if (target.out == nullptr) return;
  partial += blockIdx.y * slices * C;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kWarpSize;
  const int64_t c = first_column + threadIdx.x;
  float sum = 0.0f;
  for (int64_t begin = threadIdx.y; begin < slices; begin += kAtOnce * kWarpSize) {
    float values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t slice = begin + i * kWarpSize;
      values[i] = slice < slices && c < C ? partial[slice * C + c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum += values[i];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const float total = warp_sum(sums[threadIdx.x][threadIdx.y]);
  const int64_t column = first_column + threadIdx.y;
  if (threadIdx.x != 0 || column >= C) return;
  target.out[column] = target.add ? target.out[column] + total : total;
}

// The second stage alone, of one or two sums.
inline void fold_rows(FoldTarget first, FoldTarget second, const float* partial, int64_t slices,
                      int64_t C, Stream stream) {
  dim3 grid = one_block_each(ceil_div(C, kWarpSize));
  grid.y = second.out != nullptr ? 2 : 1;
  launch(fold_rows_kernel<8>, grid, dim3(kWarpSize, kWarpSize), 0, stream, first, second, partial,
         slices, C);
}

// out[c] = sum over rows of term(row, c), += when `add`. Term: float (int64_t row, int64_t c), on
// the device. scratch: column_sum_scratch(rows, C) bytes.
template <class Term>
void column_sum(float* out, Term term, int64_t rows, int64_t C, bool add, void* scratch,
                Stream stream) {
  const int64_t slices = column_sum_slices(rows);
  const dim3 block(kWarpSize, kColumnSumRows);
  const auto columns = static_cast<unsigned>(ceil_div(C, kWarpSize));
  float* const sums = static_cast<float*>(scratch);
  launch(column_sum_kernel<Term>, dim3(columns, static_cast<unsigned>(slices)), block, 0, stream,
         sums, term, rows, C, ceil_div(rows, slices));
  fold_rows({out, add}, {}, sums, slices, C, stream);
}

}  // namespace quern::kernels::cuda
