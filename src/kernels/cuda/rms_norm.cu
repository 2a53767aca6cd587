// RMSNorm forward, alone and with the residual add in front; the backward is in
// rms_norm_backward.cu. Each row lies in the registers of a warp or of a block, so each input is
// read once. Bound by memory: 2 row lengths, with the add 4. Rows that cannot be moved 16 bytes at
// a time, and very long ones, take the kernel that works for any row.
#include "kernels/rms_norm.h"

#include "kernels/cuda/row.cuh"

namespace quern::kernels::cuda {

namespace {

// --- any row

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

// --- rows of whole 16-byte vectors

// How the threads share a row: two warps take it while kRowVectors vectors a thread suffice, then
// twice as many. Memory is fastest when many small blocks walk through it in order, each with one
// row and no loop: larger blocks, more vectors a thread, and blocks that stay and take row after
// row were up to 15 % slower on an H200.
constexpr int kFewestThreads = 2 * kWarpSize, kMostThreads = 512;
constexpr int kRowVectors = 5;
constexpr int kLongVectors = 8;  // the rows that need more than kMostThreads so
constexpr int kShortRows = 4;    // rows of one vector a lane of a warp: as many share a block

// The sum over the threads of a row: a warp, or a block that calls this once.
__device__ __forceinline__ float row_sum(float x) {
  __shared__ float parts[kMostThreads / kWarpSize];
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  x = warp_sum(x);
  if (warps == 1) return x;
  if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < warps; ++i) sum += parts[i];
  return sum;
}

// As rms_norm_forward_kernel. All of the row is under way from memory before its first use.
template <class TX, class TY, int kVectors>
__global__ void __launch_bounds__(kMostThreads, kVectors <= kRowVectors ? 2 : 1)
    rms_norm_forward_rows_kernel(TX* sum, TY* y, float* rstd, const TX* a, const TY* b,
                                 const float* w, int64_t rows, int64_t C, float eps) {
  constexpr int kVec = kVecSize<TX>;
  constexpr bool kWeightsFirst = kVectors <= 3;  // a short row waits for both at once
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // a warp of several in the block, which share nothing
  const int64_t start = row * C;
  Held<TX, kVec> x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    x[v] = load_held<kVec>(a + start + c, c < C);
  }
  float early[kWeightsFirst ? kVectors : 1][kVec] = {};
  if constexpr (kWeightsFirst) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      if (c < C) load_vec(early[v], w + c);
    }
  }
  if (b != nullptr) {
    Held<TY, kVec> branch[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      branch[v] = load_held<kVec>(b + start + c, c < C);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      Held<TX, kVec> total{};
#pragma unroll
      for (int e = 0; e < kVec; ++e) total.set(e, x[v][e] + branch[v][e]);
      x[v] = total;
      x[v].stay_packed();
      if (c < C) store_held(sum + start + c, x[v]);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    float part = 0.0f;  // short chains, which the hardware interleaves
#pragma unroll
    for (int e = 0; e < kVec; ++e) part = fmaf(x[v][e], x[v][e], part);
    squares += part;
  }
  const float r = 1.0f / sqrtf(row_sum(squares) / static_cast<float>(C) + eps);
  if (threadIdx.x == 0) rstd[row] = r;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    if (c >= C) continue;
    float weight[kVec], out[kVec];
    x[v].stay_packed();
#pragma unroll
    for (int e = 0; e < kVec; ++e) weight[e] = early[kWeightsFirst ? v : 0][e];
    if constexpr (!kWeightsFirst) load_vec(weight, w + c);
#pragma unroll
    for (int e = 0; e < kVec; ++e) out[e] = weight[e] * (x[v][e] * r);
    store_vec(y + start + c, out);
  }
}

// Returns false when the rows are not for its kernel.
template <class TX, class TY>
bool forward_rows(TX* sum, TY* y, float* rstd, const TX* a, const TY* b, const float* w,
                  int64_t rows, int64_t C, float eps, Stream stream) {
  if (!vector_rows<TX>({sum, y, a, b, w}, C)) return false;
  const int64_t vectors = C / kVecSize<TX>;
  const int rows_each = vectors <= kWarpSize ? kShortRows : 1;
  int threads = vectors <= kWarpSize ? kWarpSize : kFewestThreads;
  while (threads < kMostThreads && vectors > threads * kRowVectors) threads *= 2;
  const auto needed = ceil_div(vectors, threads);
  const auto start = [&]<int kVectors>() {
    if (needed > kVectors) return false;
    launch(rms_norm_forward_rows_kernel<TX, TY, kVectors>,
           one_block_each(ceil_div(rows, rows_each)),
           dim3(static_cast<unsigned>(threads), static_cast<unsigned>(rows_each)), 0, stream, sum,
           y, rstd, a, b, w, rows, C, eps);
    return true;
  };
  return start.template operator()<1>() || start.template operator()<2>() ||
         start.template operator()<3>() || start.template operator()<4>() ||
         start.template operator()<kRowVectors>() || start.template operator()<kLongVectors>();
}

}  // namespace

template <class TX, class TY>
void rms_norm_forward(TY* y, acc_t<TY>* rstd, const TX* x, const acc_t<TY>* w, int64_t rows,
                      int64_t C, double eps, Stream stream) {
  add_rms_norm_forward<TX, TY>(nullptr, y, rstd, x, nullptr, w, rows, C, eps, stream);
}

template <class TX, class TY>
void add_rms_norm_forward(TX* sum, TY* y, acc_t<TY>* rstd, const TX* a, const TY* b,
                          const acc_t<TY>* w, int64_t rows, int64_t C, double eps, Stream stream) {
  const auto narrow_eps = static_cast<float>(eps);
  if (forward_rows(sum, y, rstd, a, b, w, rows, C, narrow_eps, stream)) return;
  launch_rows(rms_norm_forward_kernel<TX, TY, kWarpSize>,
              rms_norm_forward_kernel<TX, TY, kBlockGroup>, rows, C, stream, sum, y, rstd, a, b, w,
              rows, C, narrow_eps, chunks_aligned({sum, y, a, b, w}, C));
}

#define QUERN_INSTANTIATE(TX, TY)                                                               \
  template void rms_norm_forward<TX, TY>(TY*, acc_t<TY>*, const TX*, const acc_t<TY>*, int64_t, \
                                         int64_t, double, Stream);                              \
  template void add_rms_norm_forward<TX, TY>(TX*, TY*, acc_t<TY>*, const TX*, const TY*,        \
                                             const acc_t<TY>*, int64_t, int64_t, double, Stream);
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
