// Elementwise c = f(a, b) with broadcasting: a kernel forward, one backward, a functor an op. Bound
// by memory. Layouts are simplified first: equal shapes become one dimension. Where the last
// dimension allows it, a thread has a 16-byte group (an input may repeat an element).
#include "kernels/binary.h"

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/strided.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kC = 0, kA = 1, kB = 2, kDc = 3;  // kC: the output

template <int W, class F, class T>
__global__ void forward_kernel(T* c, const T* a, const T* b,
                               const __grid_constant__ StridedIndex<3> at, F f) {
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < at.count; i += threads) {
    int64_t offset[3];
    at.offsets(i, offset);
    float u[W], v[W];
    load_or_repeat(u, a + offset[kA], at.repeats(kA));
    load_or_repeat(v, b + offset[kB], at.repeats(kB));
#pragma unroll
    for (int j = 0; j < W; ++j) u[j] = f.forward(u[j], v[j]);
    store_vec(c + offset[kC], u);
  }
}

template <int W, class F, class T>
__global__ void backward_kernel(T* da, T* db, const T* a, const T* b, const T* dc,
                                const __grid_constant__ StridedIndex<4> at, F f) {
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < at.count; i += threads) {
    int64_t offset[4];
    at.offsets(i, offset);
    float u[W] = {}, v[W] = {}, g[W], out[W];
    if (F::kReadsA && a != nullptr) load_or_repeat(u, a + offset[kA], at.repeats(kA));
    if (F::kReadsB && b != nullptr) load_or_repeat(v, b + offset[kB], at.repeats(kB));
    load_or_repeat(g, dc + offset[kDc], at.repeats(kDc));
    if (da != nullptr) {
#pragma unroll
      for (int j = 0; j < W; ++j) out[j] = f.da(v[j], g[j]);
      store_vec(da + offset[kC], out);
    }
    if (db != nullptr) {
#pragma unroll
      for (int j = 0; j < W; ++j) out[j] = f.db(u[j], v[j], g[j]);
      store_vec(db + offset[kC], out);
    }
  }
}

}  // namespace

template <class T>
void binary_forward(T* c, const T* a, const T* b, const BinaryLayout& layout, const BinaryOp& op,
                    Stream stream) {
  for_each_grouped_part<kVecSize<T>>(strided<3>(layout), {address(c), address(a), address(b)},
                                     {16, 16, 16}, [&](auto width, const StridedIndex<3>& at) {
                                       std::visit(
                                           [&]<class F>(const F& f) {
                                             launch(forward_kernel<width, F, T>,
                                                    grid_stride_blocks(at.count, kThreads),
                                                    kThreads, 0, stream, c, a, b, at, f);
                                           },
                                           op);
                                     });
}

template <class T>
void binary_backward(T* da, T* db, const T* a, const T* b, const T* dc, const BinaryLayout& layout,
                     const BinaryOp& op, Stream stream) {
  for_each_grouped_part<kVecSize<T>>(
      strided<4>(layout), {address(da) | address(db), address(a), address(b), address(dc)},
      {16, 16, 16, 16}, [&](auto width, const StridedIndex<4>& at) {
        std::visit(
            [&]<class F>(const F& f) {
              launch(backward_kernel<width, F, T>, grid_stride_blocks(at.count, kThreads), kThreads,
                     0, stream, da, db, a, b, dc, at, f);
            },
            op);
      });
}

template decltype(binary_forward<float>) binary_forward<float>;
template decltype(binary_forward<bfloat16>) binary_forward<bfloat16>;
template decltype(binary_forward<float16>) binary_forward<float16>;
template decltype(binary_backward<float>) binary_backward<float>;
template decltype(binary_backward<bfloat16>) binary_backward<bfloat16>;
template decltype(binary_backward<float16>) binary_backward<float16>;

}  // namespace quern::kernels::cuda
