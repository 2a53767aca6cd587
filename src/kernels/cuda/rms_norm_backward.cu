// RMSNorm backward: dx, with the residual's gradient added, and on the way the weights' gradient.
// Each row lies in the registers of a warp or of a block, so each input is read once. Bound by
// memory: 3 or 4 row lengths. Rows that cannot be moved 16 bytes at a time, and very long ones,
// take the kernels that work for any row.
#include "kernels/rms_norm.h"

#include <algorithm>

#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/row.cuh"

namespace quern::kernels::cuda {

namespace {

// --- any row

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

// --- rows of whole 16-byte vectors

// What a thread of the backward holds, and how many threads at most take a row.
struct BackwardShape {
  int vectors;        // of each array and row
  int rows;           // at a time; as many are under way for the next turn
  int threads;        // a block, at most
  int multiplicity;   // blocks that a multiprocessor should hold
  bool weights_stay;  // in registers; else they come from the first-level cache
};
constexpr BackwardShape kBackwardShapes[] = {
    {1, 2, 320, 2, true}, {2, 1, 256, 2, true}, {4, 1, 384, 1, false}};

constexpr int64_t kBackwardBlocks = 256;  // about two a multiprocessor; fold_rows likes 256

// The rows that a thread works on in one turn. What lies beyond the block's rows or C is zero.
template <class TX, class TY, int kShape>
struct RowBatch {
  static constexpr int kRows = kBackwardShapes[kShape].rows;
  static constexpr int kVectors = kBackwardShapes[kShape].vectors;
  static constexpr int kVec = kVecSize<TX>;
  Held<TX, kVec> x[kRows][kVectors], dsum[kRows][kVectors];
  Held<TY, kVec> dy[kRows][kVectors];
  float rstd[kRows];

  __device__ __forceinline__ void load(const TX* xs, const TY* dys, const TX* dsums,
                                       const float* rstds, int64_t first, int64_t end, int64_t C) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int64_t row = first + j;
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
};

// dx of the block's even share of the rows, and partial_dw[block] = the sum of dy z over them
// (unless null). A thread keeps its columns' sums while the block walks down the rows.
template <class TX, class TY, int kShape>
__global__ void __launch_bounds__(kBackwardShapes[kShape].threads,
                                  kBackwardShapes[kShape].multiplicity)
    rms_norm_backward_rows_kernel(TX* dx, float* partial_dw, const TY* dy, const TX* dsum,
                                  const TX* x, const float* w, const float* rstd, int64_t rows,
                                  int64_t C) {
  using Batch = RowBatch<TX, TY, kShape>;
  constexpr int kRows = Batch::kRows, kVectors = Batch::kVectors, kVec = Batch::kVec;
  constexpr int kThreads = kBackwardShapes[kShape].threads;
  constexpr bool kWeightsStay = kBackwardShapes[kShape].weights_stay;
  __shared__ float dots[2][kThreads / kWarpSize][kRows];  // by turns, so one barrier a turn does
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;  // of a row
  const int first_warp = static_cast<int>(threadIdx.y) * warps;
  const int warp = first_warp + static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t begin = rows * blockIdx.x / gridDim.x;
  const int64_t end = rows * (blockIdx.x + 1) / gridDim.x;
  const int64_t step = static_cast<int64_t>(blockDim.y) * kRows;

  float kept[kWeightsStay ? kVectors : 1][kVec] = {};
  if constexpr (kWeightsStay) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (vector_column<TX>(v) < C) load_vec(kept[v], w + vector_column<TX>(v));
    }
  }
  const auto weights = [&](float(&to)[kVec], int v) {
#pragma unroll
    for (int e = 0; e < kVec; ++e) to[e] = kWeightsStay ? kept[kWeightsStay ? v : 0][e] : 0.0f;
    if (!kWeightsStay && vector_column<TX>(v) < C) load_vec(to, w + vector_column<TX>(v));
  };

  float dw[kVectors][kVec] = {};
  const float inverse_C = 1.0f / static_cast<float>(C);
  int turn = 0;
  Batch now;
  now.load(x, dy, dsum, rstd, begin + threadIdx.y * kRows, end, C);
  for (int64_t base = begin; base < end; base += step, turn ^= 1) {
    const int64_t first = base + threadIdx.y * kRows;
    Batch next;
    next.load(x, dy, dsum, rstd, first + step, end, C);
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      float dot = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float weight[kVec], part = 0.0f;
        weights(weight, v);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const float z = now.x[j][v][e] * now.rstd[j];
          const float product = now.dy[j][v][e] * z;
          dw[v][e] += product;
          part = fmaf(weight[e], product, part);
        }
        dot += part;
      }
      dot = warp_sum(dot);
      if (threadIdx.x % kWarpSize == 0) dots[turn][warp][j] = dot;
    }
    __syncthreads();
    float sums[kRows] = {};
    for (int i = 0; i < warps; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) sums[j] += dots[turn][first_warp + i][j];
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const float mean = sums[j] * inverse_C;
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
          const float z = now.x[j][v][e] * now.rstd[j];
          const float g = weight[e] * now.dy[j][v][e];
          out[e] = now.dsum[j][v][e] + now.rstd[j] * (g - z * mean);
        }
        store_vec(dx + row * C + c, out);
      }
    }
    now = next;
  }

  if (partial_dw == nullptr) return;
  if constexpr (kVectors == 1) {  // only then does a block take several rows
    __shared__ float others[kThreads][kVec];
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
    for (int e = 0; e < kVec; ++e) others[thread][e] = dw[0][e];
    __syncthreads();
    if (threadIdx.y != 0) return;
    for (int i = 1; i < static_cast<int>(blockDim.y); ++i) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) dw[0][e] += others[thread + i * blockDim.x][e];
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    if (c < C) store_vec(partial_dw + blockIdx.x * C + c, dw[v]);
  }
}

// Returns false when the rows are not for its kernel.
template <class TX, class TY>
bool backward_rows(TX* dx, float* dw, const TY* dy, const TX* dsum, const TX* x, const float* w,
                   const float* rstd, int64_t rows, int64_t C, bool add_dw, float* scratch,
                   Stream stream) {
  if (!vector_rows<TX>({dx, dy, dsum, x, w, scratch}, C)) return false;
  const auto start = [&]<int kShape>() {
    constexpr BackwardShape shape = kBackwardShapes[kShape];
    const int64_t threads = row_threads<TX>(C, shape.vectors);
    if (threads > shape.threads) return false;
    const int64_t side_by_side = shape.vectors == 1 ? shape.threads / threads : 1;
    const int64_t blocks =
        std::clamp<int64_t>(ceil_div(rows, side_by_side * shape.rows), 1, kBackwardBlocks);
    launch(rms_norm_backward_rows_kernel<TX, TY, kShape>, dim3(static_cast<unsigned>(blocks)),
           dim3(static_cast<unsigned>(threads), static_cast<unsigned>(side_by_side)), 0, stream, dx,
           dw == nullptr ? nullptr : scratch, dy, dsum, x, w, rstd, rows, C);
    if (dw != nullptr) fold_rows(dw, scratch, blocks, C, add_dw, stream);
    return true;
  };
  return start.template operator()<0>() || start.template operator()<1>() ||
         start.template operator()<2>();
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

int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  const int64_t partials = std::clamp<int64_t>(rows, 1, kBackwardBlocks);
  return std::max(column_sum_scratch(rows, C), partials * C * int64_t{sizeof(float)});
}

template <class TX, class TY>
void rms_norm_backward(TX* dx, acc_t<TY>* dw, const TY* dy, const TX* dsum, const TX* x,
                       const acc_t<TY>* w, const acc_t<TY>* rstd, int64_t rows, int64_t C,
                       bool add_dw, void* scratch, Stream stream) {
  float* const partials = static_cast<float*>(scratch);
  if (backward_rows(dx, dw, dy, dsum, x, w, rstd, rows, C, add_dw, partials, stream)) return;
  if (dw != nullptr) {
    column_sum(dw, WeightGradient<TX, TY>{dy, x, rstd, C}, rows, C, add_dw, scratch, stream);
  }
  launch_rows(rms_norm_backward_kernel<TX, TY, kWarpSize>,
              rms_norm_backward_kernel<TX, TY, kBlockGroup>, rows, C, stream, dx, dy, dsum, x, w,
              rstd, rows, C, chunks_aligned({dx, dy, dsum, x, w}, C));
}

#define QUERN_INSTANTIATE(TX, TY)                                                               \
  template void rms_norm_backward<TX, TY>(TX*, acc_t<TY>*, const TY*, const TX*, const TX*,     \
                                          const acc_t<TY>*, const acc_t<TY>*, int64_t, int64_t, \
                                          bool, void*, Stream);
QUERN_INSTANTIATE(float, float)
QUERN_INSTANTIATE(bfloat16, bfloat16)
QUERN_INSTANTIATE(float, bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
