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

// Sizes of the backward. Threads wait for memory and for each other, so a multiprocessor's
// registers hold rows in flight: of as many blocks as fit, the next row of each. Only the last
// shape spills, RMSNorm's beyond 8192 columns.
struct BackwardShape {
  int vectors;       // of each array that a thread takes of a row
  int threads;       // a block, at most
  int multiplicity;  // blocks that a multiprocessor should hold
};
inline constexpr BackwardShape kBackwardShapes[] = {
    {1, 512, 2}, {1, 320, 3}, {2, 512, 1}, {4, 352, 1}};

// A thread's part of a row, loaded before it is used. Zero outside the block's rows and beyond C.
template <class TX, class TY, int kVectors>
struct RowInputs {
  static constexpr int kVec = kVecSize<TX>;
  Held<TX, kVec> x[kVectors], dsum[kVectors];
  Held<TY, kVec> dy[kVectors];
  float mean, rstd;
};

// Computes dx of the block's rows. partial, unless null: row `block` gets the sum of dy z over the
// block's rows. If kCentred, gridDim.x rows with sums of dy follow. A thread keeps its columns'
// sums while the block walks down the rows.
template <class TX, class TY, bool kCentred, int kShape>
__global__ void __launch_bounds__(kBackwardShapes[kShape].threads,
                                  kBackwardShapes[kShape].multiplicity)
    norm_backward_rows_kernel(TX* dx, float* partial, const TY* dy, const TX* dsum, const TX* x,
                              const float* w, const float* mean, const float* rstd, int64_t rows,
                              int C) {
  constexpr BackwardShape kSizes = kBackwardShapes[kShape];
  constexpr int kVectors = kSizes.vectors, kVec = kVecSize<TX>, kQuads = kVec / 4;
  extern __shared__ float4 weights[];  // quad q of vector v: [v kQuads + q][threadIdx.x]
  // The blocks walk through memory side by side, `step` rows a turn.
  const auto count = static_cast<int>(rows);
  const auto step = static_cast<int>(gridDim.x * blockDim.y);

  RowInputs<TX, TY, kVectors> in;
  const auto load = [&](int row) {
    in.mean = kCentred && row < count ? mean[row] : 0.0f;
    in.rstd = row < count ? rstd[row] : 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      const int64_t at = int64_t{row} * C + c;
      const bool inside = row < count && c < C;
      in.x[v] = load_held<kVec>(x + at, inside);
      in.dy[v] = load_held<kVec>(dy + at, inside);
    }
  };
  const auto load_dsum = [&](int row) {
    if (dsum == nullptr) return;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      in.dsum[v] = load_held<kVec>(dsum + (int64_t{row} * C + c), row < count && c < C);
    }
  };

  float dw[kVectors][kVec] = {}, db[kCentred ? kVectors : 1][kVec] = {};
  const float inverse_C = 1.0f / static_cast<float>(C);
  int turn = 0;
  // Works on the row in `in`, and loads the next turn's into it.
  const auto take = [&](int row) {
    const float r = in.rstd;
    float z[kVectors][kVec], g[kVectors][kVec], sum_gz = 0.0f, sum_g = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        const float4 four = weights[(v * kQuads + e / 4) * blockDim.x + threadIdx.x];
        const float weight = e % 4 == 0   ? four.x
                             : e % 4 == 1 ? four.y
                             : e % 4 == 2 ? four.z
                                          : four.w;
        z[v][e] = normed<kCentred>(in.x[v][e], in.mean, r);
        g[v][e] = in.dy[v][e] * weight;
        dw[v][e] = fmaf(in.dy[v][e], z[v][e], dw[v][e]);
        sum_gz = fmaf(g[v][e], z[v][e], sum_gz);
        // Otherwise the compiler adds behind the barrier, and spills the operands.
        asm volatile("" : "+f"(dw[v][e]));
        if constexpr (kCentred) {
          db[v][e] += in.dy[v][e];
          sum_g += g[v][e];
          asm volatile("" : "+f"(db[v][e]));
        }
      }
    }
    load(row + step);
    sum_of_row<kCentred, kSizes.threads>(sum_gz, sum_g, turn);
    turn ^= 1;
    // dx = dsum + norm_gradient() with the row's factors multiplied once.
    const float slope = sum_gz * inverse_C * r, shift = sum_g * inverse_C * r;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = vector_column<TX>(v);
      float out[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        out[e] = fmaf(g[v][e], r, fmaf(-slope, z[v][e], -shift));
      }
      if (dsum != nullptr) {
#pragma unroll
        for (int e = 0; e < kVec; ++e) out[e] += in.dsum[v][e];
      }
      if (row < count && c < C) store_vec(dx + (int64_t{row} * C + c), out);
    }
    load_dsum(row + step);
  };

  const auto first = static_cast<int>(blockIdx.x * blockDim.y);
  const auto down = static_cast<int>(threadIdx.y);
  load(first + down);  // before the weights, so that the row is on its way at the barrier
  load_dsum(first + down);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      weights[(v * kQuads + q) * blockDim.x + threadIdx.x] =
          c < C ? *reinterpret_cast<const float4*>(w + c + 4 * q) : float4{};
    }
  }
  __syncthreads();

  for (int base = first; base < count; base += step) take(base + down);

  if (partial == nullptr) return;
  if constexpr (kVectors == 1) {  // only then does a block take several rows
    sum_down<kSizes.threads>(dw[0]);
    if constexpr (kCentred) sum_down<kSizes.threads>(db[0]);
    if (threadIdx.y != 0) return;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = vector_column<TX>(v);
    if (c >= C) continue;
    float* const to = partial + static_cast<int64_t>(blockIdx.x) * C + c;
    store_vec(to, dw[v]);
    if constexpr (kCentred) store_vec(to + static_cast<int64_t>(gridDim.x) * C, db[v]);
  }
}

// db, mean and add_db are used only if kCentred. dw, db and dsum may be null.
template <bool kCentred, class TX, class TY>
void norm_backward(TX* dx, float* dw, float* db, const TY* dy, const TX* dsum, const TX* x,
                   const float* w, const float* mean, const float* rstd, int64_t rows, int64_t C,
                   bool add_dw, bool add_db, void* scratch, Stream stream) {
  float* const partial = static_cast<float*>(scratch);
  const auto of_vectors = [&]<int kShape>(int64_t least_threads) {
    constexpr BackwardShape shape = kBackwardShapes[kShape];
    const int64_t threads = row_threads<TX>(C, shape.vectors);
    const int64_t side_by_side =
        shape.vectors == 1 ? shape.threads / threads : int64_t{threads <= shape.threads};
    if (side_by_side == 0 || side_by_side * threads < least_threads) return false;
    // Two turns a block at least, but one where multiprocessors would be idle.
    const int64_t one_turn = std::min(ceil_div(rows, side_by_side), kNormMultiprocessors);
    const int64_t blocks = std::clamp(std::max(one_turn, ceil_div(rows, 2 * side_by_side)),
                                      int64_t{1}, kNormMultiprocessors * shape.multiplicity);
    const bool sums = dw != nullptr || db != nullptr;
    launch(norm_backward_rows_kernel<TX, TY, kCentred, kShape>, dim3(static_cast<unsigned>(blocks)),
           dim3(static_cast<unsigned>(threads), static_cast<unsigned>(side_by_side)),
           sizeof(float) * shape.vectors * kVecSize<TX> * static_cast<size_t>(threads), stream, dx,
           sums ? partial : nullptr, dy, dsum, x, w, mean, rstd, rows, static_cast<int>(C));
    if (sums) fold_rows({dw, add_dw}, {db, add_db}, partial, blocks, C, stream);
    return true;
  };
  constexpr int64_t kMostRows = 1 << 30;  // and a few turns more are an int
  if (rows < kMostRows && vector_rows<TX>({dx, dy, dsum, x, w, scratch}, C)) {
    if (of_vectors.template operator()<0>(384)) return;  // three quarters of a block
    if (of_vectors.template operator()<1>(0)) return;
    if (of_vectors.template operator()<0>(0)) return;
    if (of_vectors.template operator()<2>(0)) return;
    if constexpr (!kCentred) {  // LayerNorm's sums do not fit
      if (of_vectors.template operator()<3>(0)) return;
    }
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
