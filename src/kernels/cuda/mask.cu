// Masks; bound by memory. masked_fill walks a broadcast layout in 16-byte groups where it can;
// causal_mask gives each row of (batch, Tq, Tk) to a warp.
#include "kernels/mask.h"

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/strided.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kY = 0, kX = 1, kMask = 2;

template <int W, class T>
__global__ void masked_fill_kernel(T* y, const T* x, const uint8_t* mask, float value,
                                   const __grid_constant__ StridedIndex<3> at) {
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < at.count; i += threads) {
    int64_t offset[3];
    at.offsets(i, offset);
    float v[W];
    load_or_repeat(v, x + offset[kX], at.repeats(kX));
    Packed<uint8_t, W> m;
    if (W > 1 && at.repeats(kMask)) {
      const uint8_t one = mask[offset[kMask]];
#pragma unroll
      for (int j = 0; j < W; ++j) m.v[j] = one;
    } else {
      m = *reinterpret_cast<const Packed<uint8_t, W>*>(mask + offset[kMask]);
    }
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = m.v[j] != 0 ? value : v[j];
    store_vec(y + offset[kY], v);
  }
}

// W neighbours of a row at a time; W divides Tk. Groups without visible elements are not read; in
// place (y == x) groups without hidden elements are not touched.
template <int W, class T>
__global__ void causal_mask_kernel(T* y, const T* x, int64_t rows, int64_t Tq, int64_t Tk,
                                   float value) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += warps) {
    const int64_t last = row % Tq + Tk - Tq;  // the last key that the row's query sees
    const int64_t begin = y == x && last >= 0 ? (last + 1) / W * W : 0;
    for (int64_t j = begin + threadIdx.x * W; j < Tk; j += kWarpSize * W) {
      float v[W] = {};
      if (j <= last) load_vec(v, x + row * Tk + j);
#pragma unroll
      for (int k = 0; k < W; ++k) v[k] = j + k <= last ? v[k] : value;
      store_vec(y + row * Tk + j, v);
    }
  }
}

}  // namespace

template <class T>
void masked_fill(T* y, const T* x, const uint8_t* mask, double value, const BinaryLayout& layout,
                 Stream stream) {
  for_each_grouped_part<kVecSize<T>>(
      strided<3>(layout), {address(y), address(x), address(mask)}, {16, 16, kVecSize<T>},
      [&](auto width, const StridedIndex<3>& at) {
        launch(masked_fill_kernel<width, T>, grid_stride_blocks(at.count, kThreads), kThreads, 0,
               stream, y, x, mask, static_cast<float>(value), at);
      });
}

template <class T>
void causal_mask(T* y, const T* x, int64_t batch, int64_t Tq, int64_t Tk, double value,
                 Stream stream) {
  if (batch * Tq * Tk == 0) return;
  constexpr int N = kVecSize<T>;
  constexpr int kWarps = kThreads / kWarpSize;
  const bool grouped = Tk % N == 0 && aligned16({y, x});
  launch(grouped ? causal_mask_kernel<N, T> : causal_mask_kernel<1, T>,
         grid_stride_blocks(batch * Tq, kWarps), dim3(kWarpSize, kWarps), 0, stream, y, x,
         batch * Tq, Tq, Tk, static_cast<float>(value));
}

template decltype(masked_fill<float>) masked_fill<float>;
template decltype(masked_fill<bfloat16>) masked_fill<bfloat16>;
template decltype(masked_fill<float16>) masked_fill<float16>;
template decltype(causal_mask<float>) causal_mask<float>;
template decltype(causal_mask<bfloat16>) causal_mask<bfloat16>;
template decltype(causal_mask<float16>) causal_mask<float16>;

}  // namespace quern::kernels::cuda
