// RMSNorm and LayerNorm forward (kCentred: LayerNorm, which has a mean and a bias), alone and with
// the residual add in front. Each row lies in the registers of a warp or of a block, so each input
// is read once. Bound by memory: 2 row lengths, with the add 4. Rows that cannot be moved 16 bytes
// at a time, and very long ones, take the kernel that works for any row.
#pragma once

#include "kernels/cuda/primitives/row.cuh"

namespace quern::kernels::cuda {

// x before the weights: z = (x - mean) rstd.
template <bool kCentred>
__device__ __forceinline__ float normed(float x, float mean, float rstd) {
  return (kCentred ? x - mean : x) * rstd;
}

// y of one element.
template <bool kCentred>
__device__ __forceinline__ float norm_output(float x, float mean, float rstd, float w, float b) {
  const float out = w * normed<kCentred>(x, mean, rstd);
  return kCentred ? out + b : out;
}

// --- any row

// x = a + branch rounded to TX, written to `sum` (which may be a); x = a when branch is null.
template <class TX, class TY, bool kCentred, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    norm_forward_kernel(TX* sum, TY* y, float* mean, float* rstd, const TX* a, const TY* branch,
                        const float* w, const float* b, int64_t rows, int64_t C, float eps,
                        bool vectors) {
  const auto extent = static_cast<float>(C);
  for_each_row<kGroup>(rows, [&](int64_t row) {
    const int64_t start = row * C;
    const TX* const again = (branch != nullptr ? sum : a) + start;  // a thread's own elements
    RowPart x;
    float total = 0.0f, squares = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool) {
      load_chunk(x[chunk], a + start, i, C, vectors);
      if (branch != nullptr) {
        float other[kChunk];
        load_chunk(other, branch + start, i, C, vectors);
#pragma unroll
        for (int e = 0; e < kChunk; ++e) {
          x[chunk][e] = to_float(from_float<TX>(x[chunk][e] + other[e]));
        }
        store_chunk(sum + start, x[chunk], i, C, vectors);
      }
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        if constexpr (kCentred) total += x[chunk][e];
        if constexpr (!kCentred) squares = fmaf(x[chunk][e], x[chunk][e], squares);
      }
    });
    float m = 0.0f;
    if constexpr (kCentred) {
      m = group_sum<kGroup>(total) / extent;
      for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
        if (!kept) load_chunk(x[chunk], again, i, C, vectors);
#pragma unroll
        for (int e = 0; e < kChunk; ++e) {
          const float distance = i + e < C ? x[chunk][e] - m : 0.0f;
          squares = fmaf(distance, distance, squares);
        }
      });
    }
    const float r = 1.0f / sqrtf(group_sum<kGroup>(squares) / extent + eps);
    if (group_lane<kGroup>() == 0) {
      if constexpr (kCentred) mean[row] = m;
      rstd[row] = r;
    }
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load_chunk(x[chunk], again, i, C, vectors);
      float weight[kChunk], bias[kChunk] = {}, out[kChunk];
      load_chunk(weight, w, i, C, vectors);
      if constexpr (kCentred) load_chunk(bias, b, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        out[e] = norm_output<kCentred>(x[chunk][e], m, r, weight[e], bias[e]);
      }
      store_chunk(y + start, out, i, C, vectors);
    });
  });
}

// --- rows of whole 16-byte vectors

// Two warps share a row while kRowVectors vectors a thread suffice, then twice as many. Memory is
// fastest when many small blocks walk through it in order, each with one row and no loop. Larger
// blocks, more vectors a thread, and blocks that stay and take row after row were up to 15 % slower
// on an H200.
inline constexpr int kFewestThreads = 2 * kWarpSize, kMostThreads = 512;
inline constexpr int kRowVectors = 5;
inline constexpr int kLongVectors = 8;  // for rows that would need more than kMostThreads
inline constexpr int kShortRows = 4;    // rows of a block, if a row is at most one vector a lane

// The sum over the threads of a row: a warp, or a block, which calls this once for each kCall.
template <int kCall>
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

// A thread's part of a vector over the columns, w or b. If `kEarly` it is loaded at once, so that a
// short row waits for it and for its own elements together; otherwise on use.
template <class TX, int kVectors, bool kEarly>
struct ColumnVector {
  static constexpr int kVec = kVecSize<TX>;
  const float* from;
  float kept[kEarly ? kVectors : 1][kVec] = {};

  __device__ __forceinline__ ColumnVector(const float* columns, int64_t C) : from(columns) {
    if constexpr (kEarly) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (vector_column<TX>(v) < C) load_vec(kept[v], from + vector_column<TX>(v));
      }
    }
  }
  // Elements of vector v, which lies within the row.
  __device__ __forceinline__ void get(float (&x)[kVec], int v) const {
#pragma unroll
    for (int e = 0; e < kVec; ++e) x[e] = kept[kEarly ? v : 0][e];
    if constexpr (!kEarly) load_vec(x, from + vector_column<TX>(v));
  }
};

// The same as norm_forward_kernel. All loads of the row are issued before the first use.
template <class TX, class TY, bool kCentred, int kVectors>
__global__ void __launch_bounds__(kMostThreads, kVectors <= kRowVectors ? 2 : 1)
    norm_forward_rows_kernel(TX* sum, TY* y, float* mean, float* rstd, const TX* a,
                             const TY* branch, const float* w, const float* b, int64_t rows,
                             int64_t C, float eps) {
  constexpr int kVec = kVecSize<TX>;
  constexpr bool kEarly = kVectors <= (kCentred ? 2 : 3);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // a warp of several in the block, which share nothing
  const int64_t start = row * C;
  const auto extent = static_cast<float>(C);
  Held<TX, kVec> x[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    x[v] = load_held<kVec>(a + start + c, c < C);
  }
  const ColumnVector<TX, kVectors, kEarly> weights(w, C);
  const ColumnVector<TX, kVectors, kEarly && kCentred> biases(b, C);
  if (branch != nullptr) {
    Held<TY, kVec> other[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      other[v] = load_held<kVec>(branch + start + c, c < C);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      Held<TX, kVec> total{};
#pragma unroll
      for (int e = 0; e < kVec; ++e) total.set(e, x[v][e] + other[v][e]);
      x[v] = total;
      x[v].stay_packed();
      if (c < C) store_held(sum + start + c, x[v]);
    }
  }
  float m = 0.0f;
  if constexpr (kCentred) {
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) total += x[v][e];
    }
    m = row_sum<0>(total) / extent;
  }
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (kCentred && vector_column<TX>(v) >= C) continue;  // the zeros there are m from the mean
    float part = 0.0f;  // short chains, which the hardware interleaves
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      const float distance = kCentred ? x[v][e] - m : x[v][e];
      part = fmaf(distance, distance, part);
    }
    squares += part;
  }
  const float r = 1.0f / sqrtf(row_sum<1>(squares) / extent + eps);
  if (threadIdx.x == 0) {
    if constexpr (kCentred) mean[row] = m;
    rstd[row] = r;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    if (c >= C) continue;
    float weight[kVec], bias[kVec] = {}, out[kVec];
    x[v].stay_packed();
    weights.get(weight, v);
    if constexpr (kCentred) biases.get(bias, v);
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      out[e] = norm_output<kCentred>(x[v][e], m, r, weight[e], bias[e]);
    }
    store_vec(y + start + c, out);
  }
}

// mean and b are null unless kCentred; sum and branch are null without the residual add.
template <bool kCentred, class TX, class TY>
void norm_forward(TX* sum, TY* y, float* mean, float* rstd, const TX* a, const TY* branch,
                  const float* w, const float* b, int64_t rows, int64_t C, double eps,
                  Stream stream) {
  const auto narrow_eps = static_cast<float>(eps);
  const auto of_vectors = [&]<int kVectors>(int64_t threads, int64_t rows_each) {
    if (ceil_div(C / kVecSize<TX>, threads) > kVectors) return false;
    launch(norm_forward_rows_kernel<TX, TY, kCentred, kVectors>,
           one_block_each(ceil_div(rows, rows_each)),
           dim3(static_cast<unsigned>(threads), static_cast<unsigned>(rows_each)), 0, stream, sum,
           y, mean, rstd, a, branch, w, b, rows, C, narrow_eps);
    return true;
  };
  if (vector_rows<TX>({sum, y, a, branch, w, b}, C)) {
    const int64_t vectors = C / kVecSize<TX>;
    const int64_t rows_each = vectors <= kWarpSize ? kShortRows : 1;
    int64_t threads = vectors <= kWarpSize ? kWarpSize : kFewestThreads;
    while (threads < kMostThreads && vectors > threads * kRowVectors) threads *= 2;
    if (of_vectors.template operator()<1>(threads, rows_each)) return;
    if (of_vectors.template operator()<2>(threads, rows_each)) return;
    if (of_vectors.template operator()<3>(threads, rows_each)) return;
    if (of_vectors.template operator()<4>(threads, rows_each)) return;
    if (of_vectors.template operator()<kRowVectors>(threads, rows_each)) return;
    if (of_vectors.template operator()<kLongVectors>(threads, rows_each)) return;
  }
  launch_rows(norm_forward_kernel<TX, TY, kCentred, kWarpSize>,
              norm_forward_kernel<TX, TY, kCentred, kBlockGroup>, rows, C, stream, sum, y, mean,
              rstd, a, branch, w, b, rows, C, narrow_eps,
              chunks_aligned({sum, y, a, branch, w, b}, C));
}

}  // namespace quern::kernels::cuda
