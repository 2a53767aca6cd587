// The passes around the product of split operands: floats to three planes of BF16 parts, and shares
// of K to D (m, n). Bound by memory: 10 bytes an element; 4 bytes a share and element of D. And the
// product over no terms: D = beta D, whose D is read unless beta is 0.
#include "kernels/cuda/gemm/gemm_split_passes.h"

#include <algorithm>

#include "kernels/cuda/gemm/gemm_split.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/strided.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kPlaneGroup = 8;  // elements a thread: 16 bytes of BF16
constexpr int kSumGroup = 4;

// Numbers groups of neighbours of all matrices, row by row: fewer than 2^31.
struct Groups {
  uint32_t count;
  FastDivisor per_row, rows;

  Groups(const MatrixLayout& layout, int64_t pitch, int width)
      : count(static_cast<uint32_t>(layout.matrices * layout.rows * (pitch / width))),
        per_row(static_cast<uint32_t>(pitch / width)),
        rows(static_cast<uint32_t>(layout.rows)) {}

  struct Place {
    uint32_t matrix, row, group;
  };
  __device__ __forceinline__ Place place(uint32_t i) const {
    const uint32_t line = per_row.divide(i), matrix = rows.divide(line);
    return {matrix, line - matrix * rows.divisor, i - line * per_row.divisor};
  }
};

// Whether rows of floats can be read and written 16 bytes at a time.
bool vector_rows(const float* x, const MatrixLayout& layout) {
  constexpr int kVector = kVecSize<float>;
  return aligned16({x}) && layout.ld % kVector == 0 && layout.stride % kVector == 0;
}

// Rounds to nearest; a finite number stays finite.
__device__ __forceinline__ float nearest_part(float x) {
  const float rounded = to_float(from_float<bfloat16>(x));
  const float cut = __uint_as_float(__float_as_uint(x) & 0xFFFF0000u);
  return isinf(rounded) ? cut : rounded;  // an infinity is its own cut
}

struct SplitPass {
  SplitSource source;
  Groups groups;
  int64_t pitch;
  bool vectors;

  explicit SplitPass(const SplitSource& from)
      : source(from),
        groups(from.layout, plane_pitch(from.layout.columns), kPlaneGroup),
        pitch(plane_pitch(from.layout.columns)),
        vectors(vector_rows(from.x, from.layout)) {}
};

// blockIdx.y selects the operand.
__global__ void __launch_bounds__(kThreads)
    split_planes_kernel(const __grid_constant__ SplitPass first,
                        const __grid_constant__ SplitPass second) {
  const SplitPass& pass = blockIdx.y == 0 ? first : second;
  const MatrixLayout& layout = pass.source.layout;
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < pass.groups.count; i += threads) {
    const auto [matrix, row, group] = pass.groups.place(i);
    const int64_t column = int64_t{group} * kPlaneGroup;
    const float* from = pass.source.x + matrix * layout.stride + row * layout.ld + column;
    float left[kPlaneGroup];
    if (pass.vectors && column + kPlaneGroup <= layout.columns) {
      load_vec(left, from);
    } else {
#pragma unroll
      for (int j = 0; j < kPlaneGroup; ++j) {
        left[j] = column + j < layout.columns ? from[j] : 0.0f;
      }
    }
    const int64_t plane = layout.rows * pass.pitch;
    bfloat16* to = pass.source.planes + matrix * kSplitPlanes * plane + row * pass.pitch + column;
#pragma unroll
    for (int p = 0; p < kSplitPlanes; ++p) {
      float part[kPlaneGroup];
#pragma unroll
      for (int j = 0; j < kPlaneGroup; ++j) {
        part[j] = nearest_part(left[j]);
        left[j] -= part[j];
      }
      store_raw(to + p * plane, part);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(float* d, const float* sums, MatrixLayout out, Groups groups, int64_t pitch,
                     int parts, float alpha, float beta, bool vectors) {
  const uint32_t threads = gridDim.x * blockDim.x;
  const int64_t part = out.matrices * out.rows * pitch;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < groups.count; i += threads) {
    const auto [matrix, row, group] = groups.place(i);
    const int64_t column = int64_t{group} * kSumGroup;
    const float* from = sums + (matrix * out.rows + row) * pitch + column;
    float total[kSumGroup];
    load_vec(total, from);
    for (int p = 1; p < parts; ++p) {
      float next[kSumGroup];
      load_vec(next, from + p * part);
#pragma unroll
      for (int j = 0; j < kSumGroup; ++j) total[j] += next[j];
    }
    float* to = d + matrix * out.stride + row * out.ld + column;
    if (vectors && column + kSumGroup <= out.columns) {
      float before[kSumGroup] = {};
      if (beta != 0.0f) load_vec(before, to);
#pragma unroll
      for (int j = 0; j < kSumGroup; ++j) total[j] = alpha * total[j] + beta * before[j];
      store_raw(to, total);
    } else {
      for (int j = 0; j < kSumGroup && column + j < out.columns; ++j) {
        to[j] = alpha * total[j] + (beta == 0.0f ? 0.0f : beta * to[j]);
      }
    }
  }
}

template <class T>
__global__ void scale_matrices_kernel(T* d, int64_t m, int64_t n, int64_t ld, int64_t batch,
                                      int64_t stride, float beta) {
  for_each_index(batch * m * n, [&](int64_t i) {
    T* element = d + i / (m * n) * stride + i / n % m * ld + i % n;
    *element = from_float<T>(beta == 0.0f ? 0.0f : beta * to_float(*element));
  });
}

}  // namespace

template <class TD>
void scale_matrices(TD* d, int64_t m, int64_t n, int64_t ld, int64_t batch, int64_t stride,
                    float beta, Stream stream) {
  launch(scale_matrices_kernel<TD>, grid_stride_blocks(m * n * batch, kThreads), kThreads, 0,
         stream, d, m, n, ld, batch, stride, beta);
}

template decltype(scale_matrices<float>) scale_matrices<float>;
template decltype(scale_matrices<bfloat16>) scale_matrices<bfloat16>;

void split_planes(const SplitSource& first, const SplitSource& second, Stream stream) {
  const SplitPass a(first), b(second);
  dim3 grid = grid_stride_blocks(std::max(a.groups.count, b.groups.count), kThreads);
  grid.y = 2;
  launch(split_planes_kernel, grid, kThreads, 0, stream, a, b);
}

void sum_parts(float* d, const float* sums, const MatrixLayout& out, int64_t pitch, int parts,
               float alpha, float beta, Stream stream) {
  const Groups groups(out, pitch, kSumGroup);
  launch(sum_parts_kernel, grid_stride_blocks(groups.count, kThreads), kThreads, 0, stream, d, sums,
         out, groups, pitch, parts, alpha, beta, vector_rows(d, out));
}

}  // namespace quern::kernels::cuda
