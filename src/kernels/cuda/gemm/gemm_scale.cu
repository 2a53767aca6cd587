// D = beta D, `batch` row-major (m, n) matrices. Bound by memory; D is read unless beta is 0.
#include "kernels/cuda/gemm/gemm_scale.h"

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

template <class T>
__global__ void scale_matrices_kernel(T* d, int64_t m, int64_t n, int64_t ld, int64_t batch,
                                      int64_t stride, float beta) {
  const int64_t total = batch * m * n;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += threads) {
    T* element = d + i / (m * n) * stride + i / n % m * ld + i % n;
    *element = from_float<T>(beta == 0.0f ? 0.0f : beta * to_float(*element));
  }
}

}  // namespace

template <class TD>
void scale_matrices(TD* d, int64_t m, int64_t n, int64_t ld, int64_t batch, int64_t stride,
                    float beta, Stream stream) {
  constexpr int kThreads = 256;
  launch(scale_matrices_kernel<TD>, grid_stride_blocks(m * n * batch, kThreads), kThreads, 0,
         stream, d, m, n, ld, batch, stride, beta);
}

template decltype(scale_matrices<float>) scale_matrices<float>;
template decltype(scale_matrices<bfloat16>) scale_matrices<bfloat16>;

}  // namespace quern::kernels::cuda
