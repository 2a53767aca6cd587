// LayerNorm. A warp or a block takes a row and keeps it in registers, so the mean, the variance
// about it and the result come from one read. Bound by memory: forward 2 row lengths, backward 3,
// and 3 more for dw and db.
#include "kernels/layer_norm.h"

#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/row.cuh"

namespace quern::kernels::cuda {

namespace {

template <class T, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    layer_norm_forward_kernel(T* y, float* mean, float* rstd, const T* x, const float* w,
                              const float* b, int64_t rows, int64_t C, float eps, bool vectors) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  for_each_row<kGroup>(rows, [&](int64_t row) {
    const int64_t start = row * C;
    RowPart part;
    float sum = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool) {
      load_chunk(part[chunk], x + start, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) sum += part[chunk][e];
    });
    const float m = group_sum<kGroup>(sum) * inverse_C;

    float squares = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load_chunk(part[chunk], x + start, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        const float distance = i + e < C ? part[chunk][e] - m : 0.0f;
        squares = fmaf(distance, distance, squares);
      }
    });
    const float r = 1.0f / sqrtf(group_sum<kGroup>(squares) * inverse_C + eps);
    if (group_lane<kGroup>() == 0) {
      mean[row] = m;
      rstd[row] = r;
    }

    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load_chunk(part[chunk], x + start, i, C, vectors);
      float weight[kChunk], bias[kChunk], out[kChunk];
      load_chunk(weight, w, i, C, vectors);
      load_chunk(bias, b, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) out[e] = weight[e] * ((part[chunk][e] - m) * r) + bias[e];
      store_chunk(y + start, out, i, C, vectors);
    });
  });
}

// With z = (x - mean) rstd and g = w dy: dx = rstd (g - mean(g) - z mean(g z)).
template <class T, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    layer_norm_backward_kernel(T* dx, const T* dy, const T* x, const float* w, const float* mean,
                               const float* rstd, int64_t rows, int64_t C, bool vectors) {
  const float inverse_C = 1.0f / static_cast<float>(C);
  for_each_row<kGroup>(rows, [&](int64_t row) {
    const int64_t start = row * C;
    const float m = mean[row];
    const float r = rstd[row];
    RowPart z, g;
    const auto load = [&](int64_t i, int chunk) {
      float weight[kChunk];
      load_chunk(z[chunk], x + start, i, C, vectors);
      load_chunk(g[chunk], dy + start, i, C, vectors);
      load_chunk(weight, w, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        z[chunk][e] = (z[chunk][e] - m) * r;
        g[chunk][e] *= weight[e];  // 0 past the row's end, which keeps z there out of the sums
      }
    };
    float sum = 0.0f, dot = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool) {
      load(i, chunk);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        sum += g[chunk][e];
        dot = fmaf(g[chunk][e], z[chunk][e], dot);
      }
    });
    const float mean_g = group_sum<kGroup>(sum) * inverse_C;
    const float mean_gz = group_sum<kGroup>(dot) * inverse_C;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load(i, chunk);
      float out[kChunk];
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        out[e] = r * (g[chunk][e] - mean_g - z[chunk][e] * mean_gz);
      }
      store_chunk(dx + start, out, i, C, vectors);
    });
  });
}

template <class T>
struct WeightGradient {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  int64_t C;
  __device__ float operator()(int64_t row, int64_t c) const {
    const float z = (to_float(x[row * C + c]) - mean[row]) * rstd[row];
    return to_float(dy[row * C + c]) * z;
  }
};

template <class T>
struct BiasGradient {
  const T* dy;
  int64_t C;
  __device__ float operator()(int64_t row, int64_t c) const { return to_float(dy[row * C + c]); }
};

}  // namespace

template <class T>
void layer_norm_forward(T* y, acc_t<T>* mean, acc_t<T>* rstd, const T* x, const acc_t<T>* w,
                        const acc_t<T>* b, int64_t rows, int64_t C, double eps, Stream stream) {
  launch_rows(layer_norm_forward_kernel<T, kWarpSize>, layer_norm_forward_kernel<T, kBlockGroup>,
              rows, C, stream, y, mean, rstd, x, w, b, rows, C, static_cast<float>(eps),
              chunks_aligned({y, x, w, b}, C));
}

int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  return column_sum_scratch(rows, C);  // dw and db take turns
}

template <class T>
void layer_norm_backward(T* dx, acc_t<T>* dw, acc_t<T>* db, const T* dy, const T* x,
                         const acc_t<T>* w, const acc_t<T>* mean, const acc_t<T>* rstd,
                         int64_t rows, int64_t C, bool add_dw, bool add_db, void* scratch,
                         Stream stream) {
  if (dw != nullptr) {
    column_sum(dw, WeightGradient<T>{dy, x, mean, rstd, C}, rows, C, add_dw, scratch, stream);
  }
  if (db != nullptr) column_sum(db, BiasGradient<T>{dy, C}, rows, C, add_db, scratch, stream);
  launch_rows(layer_norm_backward_kernel<T, kWarpSize>, layer_norm_backward_kernel<T, kBlockGroup>,
              rows, C, stream, dx, dy, x, w, mean, rstd, rows, C,
              chunks_aligned({dx, dy, x, w}, C));
}

#define QUERN_INSTANTIATE(T)                                                                       \
  template void layer_norm_forward<T>(T*, acc_t<T>*, acc_t<T>*, const T*, const acc_t<T>*,         \
                                      const acc_t<T>*, int64_t, int64_t, double, Stream);          \
  template void layer_norm_backward<T>(T*, acc_t<T>*, acc_t<T>*, const T*, const T*,               \
                                       const acc_t<T>*, const acc_t<T>*, const acc_t<T>*, int64_t, \
                                       int64_t, bool, bool, void*, Stream);
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
