// RMSNorm and LayerNorm backward (kCentred: LayerNorm): dx, with the residual's gradient added, and
// in the same pass the gradients of w and b. A warp or a block holds a row in its registers, so
// each input is read once. Bound by memory: 3 or 4 row lengths. Rows that cannot be moved 16 bytes
// at a time, and very long ones, take the kernels that work for any row.
#pragma once

#include <algorithm>

#include "kernels/cuda/norm_forward.cuh"
#include "kernels/cuda/primitives/column_sum.cuh"

namespace quern::kernels::cuda {

// With z = (x - mean) rstd and g = w dy: dx = rstd (g - mean(g) - z mean(g z)); RMSNorm, whose z is
// x rstd, has no mean(g).
template <bool kCentred>
__device__ __forceinline__ float norm_gradient(float g, float z, float mean_g, float mean_gz,
                                               float rstd) {
  return rstd * ((kCentred ? g - mean_g : g) - z * mean_gz);
}

// --- any row

template <class TX, class TY, bool kCentred, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_kernel(TX* dx, const TY* dy, const TX* dsum, const TX* x, const float* w,
                         const float* mean, const float* rstd, int64_t rows, int64_t C,
                         bool vectors) {
  const auto extent = static_cast<float>(C);
  for_each_row<kGroup>(rows, [&](int64_t row) {
    const int64_t start = row * C;
    const float m = kCentred ? mean[row] : 0.0f, r = rstd[row];
    RowPart z, g;
    const auto load = [&](int64_t i, int chunk) {
      float weight[kChunk];
      load_chunk(z[chunk], x + start, i, C, vectors);
      load_chunk(g[chunk], dy + start, i, C, vectors);
      load_chunk(weight, w, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        z[chunk][e] = normed<kCentred>(z[chunk][e], m, r);
        g[chunk][e] *= weight[e];  // 0 past the row's end, which keeps z there out of the sums
      }
    };
    float total = 0.0f, dot = 0.0f;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool) {
      load(i, chunk);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        if constexpr (kCentred) total += g[chunk][e];
        dot = fmaf(g[chunk][e], z[chunk][e], dot);
      }
    });
    const float mean_g = kCentred ? group_sum<kGroup>(total) / extent : 0.0f;
    const float mean_gz = group_sum<kGroup>(dot) / extent;
    for_each_chunk<kGroup>(C, [&](int64_t i, int chunk, bool kept) {
      if (!kept) load(i, chunk);
      float out[kChunk] = {};
      if (dsum != nullptr) load_chunk(out, dsum + start, i, C, vectors);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        out[e] += norm_gradient<kCentred>(g[chunk][e], z[chunk][e], mean_g, mean_gz, r);
      }
      store_chunk(dx + start, out, i, C, vectors);
    });
  });
}

template <class TX, class TY, bool kCentred>
struct NormWeightGradient {
  const TY* dy;
  const TX* x;
  const float *mean, *rstd;
  int64_t C;
  __device__ float operator()(int64_t row, int64_t c) const {
    const float m = kCentred ? mean[row] : 0.0f;
    return to_float(dy[row * C + c]) * normed<kCentred>(to_float(x[row * C + c]), m, rstd[row]);
  }
};

template <class TY>
struct NormBiasGradient {
  const TY* dy;
  int64_t C;
  __device__ float operator()(int64_t row, int64_t c) const { return to_float(dy[row * C + c]); }
};

// --- rows of whole 16-byte vectors

// Sizes of the backward: what a thread holds, and the most threads of a block.
struct BackwardShape {
  int vectors;        // of each array and row
  int rows;           // at a time; as many are under way for the next turn
  int threads;        // a block, at most
  int multiplicity;   // blocks that a multiprocessor should hold
  bool weights_stay;  // in registers; else they come from the first-level cache
};
inline constexpr BackwardShape kBackwardShapes[] = {
    {1, 2, 320, 2, true}, {2, 1, 256, 2, true}, {4, 1, 384, 1, false}};
inline constexpr BackwardShape kLongCentred{4, 1, 256, 1, false};  // the sums of dy take registers

template <bool kCentred, int kShape>
inline constexpr BackwardShape kBackwardShape =
    kCentred&& kShape == 2 ? kLongCentred : kBackwardShapes[kShape];

// The rows that a thread works on in one turn. Elements beyond the block's rows or C are zero.
template <class TX, class TY, bool kCentred, int kShape>
struct RowBatch {
  static constexpr int kRows = kBackwardShape<kCentred, kShape>.rows;
  static constexpr int kVectors = kBackwardShape<kCentred, kShape>.vectors;
  static constexpr int kVec = kVecSize<TX>;
  Held<TX, kVec> x[kRows][kVectors], dsum[kRows][kVectors];
  Held<TY, kVec> dy[kRows][kVectors];
  float mean[kCentred ? kRows : 1], rstd[kRows];

  __device__ __forceinline__ void load(const TX* xs, const TY* dys, const TX* dsums,
                                       const float* means, const float* rstds, int64_t first,
                                       int64_t end, int64_t C) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int64_t row = first + j;
      if constexpr (kCentred) mean[j] = row < end ? means[row] : 0.0f;
      rstd[j] = row < end ? rstds[row] : 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int c = vector_column<TX>(v);
        const bool inside = row < end && c < C;
        x[j][v] = load_streaming<kVec>(xs + row * C + c, inside);
        dy[j][v] = load_streaming<kVec>(dys + row * C + c, inside);
        dsum[j][v] = load_streaming<kVec>(dsums + row * C + c, inside && dsums != nullptr);
      }
    }
  }
  // z / rstd: the distance from the mean.
  __device__ __forceinline__ float distance(int j, int v, int e) const {
    return kCentred ? x[j][v][e] - mean[kCentred ? j : 0] : x[j][v][e];
  }
};

// dx of the block's even share of the rows. partial, unless null: of its first gridDim.x rows, row
// `block` is the sum of dy z over the block's rows. If kCentred, as many sums of dy follow. A
// thread keeps its columns' sums while the block walks down the rows.
template <class TX, class TY, bool kCentred, int kShape>
__global__ void __launch_bounds__(kBackwardShape<kCentred, kShape>.threads,
                                  kBackwardShape<kCentred, kShape>.multiplicity)
    norm_backward_rows_kernel(TX* dx, float* partial, const TY* dy, const TX* dsum, const TX* x,
                              const float* w, const float* mean, const float* rstd, int64_t rows,
                              int64_t C) {
  using Batch = RowBatch<TX, TY, kCentred, kShape>;
  constexpr int kRows = Batch::kRows, kVectors = Batch::kVectors, kVec = Batch::kVec;
  constexpr int kThreads = kBackwardShape<kCentred, kShape>.threads;
  constexpr int kSums = kCentred ? 2 : 1;  // of each row: g z / rstd and, where needed, g
  // Two buffers in turn, so that one barrier a turn suffices.
  __shared__ float dots[2][kThreads / kWarpSize][kRows][kSums];
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;  // of a row
  const int first_warp = static_cast<int>(threadIdx.y) * warps;
  const int warp = first_warp + static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t begin = rows * blockIdx.x / gridDim.x;
  const int64_t end = rows * (blockIdx.x + 1) / gridDim.x;
  const int64_t step = static_cast<int64_t>(blockDim.y) * kRows;

  const ColumnVector<TX, kVectors, kBackwardShape<kCentred, kShape>.weights_stay> all_weights(w, C);
  const auto weights = [&](float(&to)[kVec], int v) {
    if (vector_column<TX>(v) < C) return all_weights.get(to, v);
#pragma unroll
    for (int e = 0; e < kVec; ++e) to[e] = 0.0f;
  };

  float dw[kVectors][kVec] = {}, db[kCentred ? kVectors : 1][kVec] = {};
  const float inverse_C = 1.0f / static_cast<float>(C);
  int turn = 0;
  Batch now;
  now.load(x, dy, dsum, mean, rstd, begin + threadIdx.y * kRows, end, C);
  for (int64_t base = begin; base < end; base += step, turn ^= 1) {
    const int64_t first = base + threadIdx.y * kRows;
    Batch next;
    next.load(x, dy, dsum, mean, rstd, first + step, end, C);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      float dot = 0.0f, total = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float weight[kVec], part = 0.0f, part_g = 0.0f;
        weights(weight, v);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const float product = now.dy[j][v][e] * now.distance(j, v, e);
          dw[v][e] = fmaf(product, now.rstd[j], dw[v][e]);
          part = fmaf(weight[e], product, part);
          if constexpr (kCentred) {
            db[v][e] += now.dy[j][v][e];
            part_g = fmaf(weight[e], now.dy[j][v][e], part_g);
          }
        }
        dot += part;
        if constexpr (kCentred) total += part_g;
      }
      dot = warp_sum(dot);
      if constexpr (kCentred) total = warp_sum(total);
      if (threadIdx.x % kWarpSize == 0) {
        dots[turn][warp][j][0] = dot;
        if constexpr (kCentred) dots[turn][warp][j][kSums - 1] = total;
      }
    }
    __syncthreads();
    float sums[kRows][kSums] = {};
    for (int i = 0; i < warps; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[j][s] += dots[turn][first_warp + i][j][s];
      }
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      // dx = dsum + rstd g - shift - slope (x - mean), as norm_gradient with the row's factors out.
      const float r = now.rstd[j];
      const float slope = sums[j][0] * inverse_C * r * r * r;
      const float shift = kCentred ? sums[j][kSums - 1] * inverse_C * r : 0.0f;
      const int64_t row = first + j;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int c = vector_column<TX>(v);
        if (row >= end || c >= C) continue;
        now.x[j][v].stay_packed();
        now.dy[j][v].stay_packed();
        float weight[kVec], out[kVec];
        weights(weight, v);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const float straight = kCentred ? now.dsum[j][v][e] - shift : now.dsum[j][v][e];
          const float along = fmaf(-slope, now.distance(j, v, e), straight);
          out[e] = fmaf(weight[e] * now.dy[j][v][e], r, along);
        }
        store_vec(dx + row * C + c, out);
      }
    }
    now = next;
  }

  if (partial == nullptr) return;
  if constexpr (kVectors == 1) {  // only then does a block take several rows
    sum_down<kThreads>(dw[0]);
    if constexpr (kCentred) sum_down<kThreads>(db[0]);
    if (threadIdx.y != 0) return;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    if (c >= C) continue;
    store_vec(partial + blockIdx.x * C + c, dw[v]);
    if constexpr (kCentred) store_vec(partial + (gridDim.x + blockIdx.x) * C + c, db[v]);
  }
}

// db, mean and add_db are used only if kCentred. dw, db and dsum may be null.
template <bool kCentred, class TX, class TY>
void norm_backward(TX* dx, float* dw, float* db, const TY* dy, const TX* dsum, const TX* x,
                   const float* w, const float* mean, const float* rstd, int64_t rows, int64_t C,
                   bool add_dw, bool add_db, void* scratch, Stream stream) {
  float* const partial = static_cast<float*>(scratch);
  const auto of_vectors = [&]<int kShape>() {
    constexpr BackwardShape shape = kBackwardShape<kCentred, kShape>;
    const int64_t threads = row_threads<TX>(C, shape.vectors);
    if (threads > shape.threads) return false;
    const int64_t side_by_side = shape.vectors == 1 ? shape.threads / threads : 1;
    const int64_t blocks =
        std::clamp<int64_t>(ceil_div(rows, side_by_side * shape.rows), 1, kNormBackwardBlocks);
    const bool sums = dw != nullptr || db != nullptr;
    launch(norm_backward_rows_kernel<TX, TY, kCentred, kShape>, dim3(static_cast<unsigned>(blocks)),
           dim3(static_cast<unsigned>(threads), static_cast<unsigned>(side_by_side)), 0, stream, dx,
           sums ? partial : nullptr, dy, dsum, x, w, mean, rstd, rows, C);
    if (sums) fold_rows({dw, add_dw}, {db, add_db}, partial, blocks, C, stream);
    return true;
  };
  if (vector_rows<TX>({dx, dy, dsum, x, w, scratch}, C)) {
    if (of_vectors.template operator()<0>()) return;
    if (of_vectors.template operator()<1>()) return;
    if (of_vectors.template operator()<2>()) return;
  }
  if (dw != nullptr) {
    const NormWeightGradient<TX, TY, kCentred> term{dy, x, mean, rstd, C};
    column_sum(dw, term, rows, C, add_dw, scratch, stream);
  }
  if (db != nullptr) {
    column_sum(db, NormBiasGradient<TY>{dy, C}, rows, C, add_db, scratch, stream);
  }
  launch_rows(norm_backward_kernel<TX, TY, kCentred, kWarpSize>,
              norm_backward_kernel<TX, TY, kCentred, kBlockGroup>, rows, C, stream, dx, dy, dsum, x,
              w, mean, rstd, rows, C, chunks_aligned({dx, dy, dsum, x, w}, C));
}

}  // namespace quern::kernels::cuda
