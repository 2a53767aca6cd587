// Rotary position embedding on (B, T, H, D) views. A thread rotates up to 8 pairs. Bound by memory:
// one read and one write of x; the tables stay in cache.
#include "kernels/rope.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// kWidth pairs a thread. direction: 1 forward, -1 backward.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* y, const T* x, const float* cos, const float* sin, const int32_t* positions,
                const __grid_constant__ RopeLayout s, float direction) {
  const int64_t half = s.D / 2;
  const int64_t chunks = half / kWidth;
  const int64_t total = s.B * s.T * s.H * chunks;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; index < total; index += step) {
    const int64_t d = index % chunks * kWidth;
    const int64_t h = index / chunks % s.H;
    const int64_t token = index / chunks / s.H;
    const int64_t t = token % s.T;
    const int64_t b = token / s.T;
    int64_t position = s.first_position + t;
    if (positions != nullptr) position = positions[s.positions_per_batch ? token : t];

    const T* source = x + b * s.x_strides[0] + t * s.x_strides[1] + h * s.x_strides[2] + d;
    T* target = y + b * s.y_strides[0] + t * s.y_strides[1] + h * s.y_strides[2] + d;
    float x1[kWidth], x2[kWidth], c[kWidth], n[kWidth], y1[kWidth], y2[kWidth];
    load_vec(x1, source);
    load_vec(x2, source + half);
    load_vec(c, cos + position * half + d);
    load_vec(n, sin + position * half + d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      n[i] *= direction;
      y1[i] = x1[i] * c[i] - x2[i] * n[i];
      y2[i] = x2[i] * c[i] + x1[i] * n[i];
    }
    store_vec(target, y1);
    store_vec(target + half, y2);
  }
}

__global__ void rope_table_kernel(float* cos_out, float* sin_out, int64_t total, int64_t half,
                                  double theta) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; index < total; index += step) {
    const double exponent = -static_cast<double>(index % half) / static_cast<double>(half);
    const double angle = static_cast<double>(index / half) * pow(theta, exponent);
    cos_out[index] = static_cast<float>(cos(angle));
    sin_out[index] = static_cast<float>(sin(angle));
  }
}

bool divisible(const int64_t (&strides)[3], int64_t by) {
  return strides[0] % by == 0 && strides[1] % by == 0 && strides[2] % by == 0;
}

}  // namespace

template <class T>
void rope(T* y, const T* x, const acc_t<T>* cos, const acc_t<T>* sin, const int32_t* positions,
          const RopeLayout& layout, bool inverse, Stream stream) {
  QUERN_CHECK(layout.D % 2 == 0, "rope: head_dim is ", layout.D, ", expected an even number");
  const int64_t pairs = layout.B * layout.T * layout.H * (layout.D / 2);
  const float direction = inverse ? -1.0f : 1.0f;
  constexpr int kWidth = kVecSize<T>;
  const bool vectors = aligned16({y, x, cos, sin}) && layout.D / 2 % kWidth == 0 &&
                       divisible(layout.x_strides, kWidth) && divisible(layout.y_strides, kWidth);
  if (vectors) {
    launch(rope_kernel<T, kWidth>, grid_stride_blocks(pairs / kWidth, kThreads), dim3(kThreads), 0,
           stream, y, x, cos, sin, positions, layout, direction);
  } else {
    launch(rope_kernel<T, 1>, grid_stride_blocks(pairs, kThreads), dim3(kThreads), 0, stream, y, x,
           cos, sin, positions, layout, direction);
  }
}

template <class A>
void rope_table(A* cos, A* sin, int64_t positions, int64_t D, double theta, Stream stream) {
  const int64_t total = positions * (D / 2);
  launch(rope_table_kernel, grid_stride_blocks(total, kThreads), dim3(kThreads), 0, stream, cos,
         sin, total, D / 2, theta);
}

template void rope<float>(float*, const float*, const float*, const float*, const int32_t*,
                          const RopeLayout&, bool, Stream);
template void rope<bfloat16>(bfloat16*, const bfloat16*, const float*, const float*, const int32_t*,
                             const RopeLayout&, bool, Stream);
template void rope_table<float>(float*, float*, int64_t, int64_t, double, Stream);

}  // namespace quern::kernels::cuda
