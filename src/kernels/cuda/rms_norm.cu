// RMSNorm, alone and with the residual add in front. A warp or a block takes a row and keeps it in
// registers, so each input is read once. Bound by memory: forward 2 (with the add 4) row lengths,
// backward 3 or 4, and 2 more for dw.
#include "kernels/rms_norm.h"

#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/row.cuh"

namespace quern::kernels::cuda {

namespace {

// x = a + b rounded to TX, which is written to `sum`; x = a when b is null. `sum` may be a.
template <class TX, class TY, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    rms_norm_forward_kernel(TX* sum, TY* y, float* rstd, const TX* a, const TY* b, const float* w,
                            int64_t rows, int64_t C, float eps, bool vectors) {
  for_each_row<kGroup>(rows, [&](int64_t row) {
    const int64_t start = row * C;
    RowPart x;
    float squares = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool) {
      load_chunk(x[chunk], a + start, i, C, vectors);
      if (b != nullptr) {
        float other[kChunk];
        load_chunk(other, b + start, i, C, vectors);
#pragma unroll
        for (int e = 0; e < kChunk; ++e) {
          x[chunk][e] = to_float(from_float<TX>(x[chunk][e] + other[e]));
        }
        store_chunk(sum + start, x[chunk], i, C, vectors);
      }
#pragma unroll
      for (int e = 0; e < kChunk; ++e) squares = fmaf(x[chunk][e], x[chunk][e], squares);
    });
    const float r = 1.0f / sqrtf(group_sum<kGroup>(squares) / static_cast<float>(C) + eps);
    if (group_lane<kGroup>() == 0) rstd[row] = r;

    const TX* const again = b != nullptr ? sum : a;  // each thread reads what it wrote itself
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load_chunk(x[chunk], again + start, i, C, vectors);
      float weight[kChunk], out[kChunk];
      load_chunk(weight, w, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) out[e] = weight[e] * (x[chunk][e] * r);
      store_chunk(y + start, out, i, C, vectors);
    });
  });
}

template <class TX, class TY, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    rms_norm_backward_kernel(TX* dx, const TY* dy, const TX* dsum, const TX* x, const float* w,
                             const float* rstd, int64_t rows, int64_t C, bool vectors) {
  for_each_row<kGroup>(rows, [&](int64_t row) {
    const int64_t start = row * C;
    const float r = rstd[row];
    RowPart z, g;  // x rstd and w dy
    const auto load = [&](int64_t i, int chunk) {
      float weight[kChunk];
      load_chunk(z[chunk], x + start, i, C, vectors);
      load_chunk(g[chunk], dy + start, i, C, vectors);
      load_chunk(weight, w, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        z[chunk][e] *= r;
        g[chunk][e] *= weight[e];
      }
    };
    float dot = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool) {
      load(i, chunk);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) dot = fmaf(g[chunk][e], z[chunk][e], dot);
    });
    const float mean = group_sum<kGroup>(dot) / static_cast<float>(C);
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load(i, chunk);
      float out[kChunk] = {};
      if (dsum != nullptr) load_chunk(out, dsum + start, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) out[e] += r * (g[chunk][e] - z[chunk][e] * mean);
      store_chunk(dx + start, out, i, C, vectors);
    });
  });
}

template <class TX, class TY>
struct WeightGradient {
  const TY* dy;
  const TX* x;
  const float* rstd;
  int64_t C;
  __device__ float operator()(int64_t row, int64_t c) const {
    return to_float(dy[row * C + c]) * (to_float(x[row * C + c]) * rstd[row]);
  }
};

}  // namespace

template <class TX, class TY>
void rms_norm_forward(TY* y, acc_t<TY>* rstd, const TX* x, const acc_t<TY>* w, int64_t rows,
                      int64_t C, double eps, Stream stream) {
  add_rms_norm_forward<TX, TY>(nullptr, y, rstd, x, nullptr, w, rows, C, eps, stream);
}

template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream stream) {
  launch_rows(rms_norm_forward_kernel<TX, TY, kWarpSize>,
              rms_norm_forward_kernel<TX, TY, kBlockGroup>, rows, C, stream, sum, y, rstd, a, b, w,
              rows, C, static_cast<float>(eps), chunks_aligned({sum, y, a, b, w}, C));
}

int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  return column_sum_scratch(rows, C);
}

template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream stream) {
  if (dw != nullptr) {
    column_sum(dw, WeightGradient<TX, TY>{dy, x, rstd, C}, rows, C, add_dw, scratch, stream);
  }
  launch_rows(rms_norm_backward_kernel<TX, TY, kWarpSize>,
              rms_norm_backward_kernel<TX, TY, kBlockGroup>, rows, C, stream, dx, dy, dsum, x, w,
              rstd, rows, C, chunks_aligned({dx, dy, dsum, x, w}, C));
}

#define QUERN_INSTANTIATE(TX, TY)                                                                 \
  template void rms_norm_forward<TX, TY>(TY*, acc_t<TY>*, const TX*, const acc_t<TY>*, int64_t,   \
                                         int64_t, double, Stream);                                \
  template void add_rms_norm_forward<TX, TY>(TX*, TY*, acc_t<TY>*, const TX*, const TY*,          \
                                             const acc_t<TY>*, int64_t, int64_t, double, Stream); \
  template void rms_norm_backward<TX, TY>(TX*, acc_t<TY>*, const TY*, const TX*, const TX*,       \
                                          const acc_t<TY>*, const acc_t<TY>*, int64_t, int64_t,   \
                                          bool, void*, Stream);
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
