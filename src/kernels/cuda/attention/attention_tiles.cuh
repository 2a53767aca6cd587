// Building blocks of the attention kernels. Nouns: a tile of floats in shared memory, a thread's
// place. Verbs: load_tile, multiply_transposed, store_scores, multiply_add, store_rows.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/slow_path.h"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

// Scores are kept in units of log2, so that exp is exp2: scale log2(e) is folded into Q.
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// The lanes of a warp form 4 rows by 8 columns. A warp owns 4 kRows consecutive rows of the tile,
// so a row's 8 threads are neighbours and scores never cross warps.
template <int kTileRows>
struct TilePlace {
  static constexpr int kRows = kTileRows / 16;  // rows a thread

  int first_row, first_column;

  __device__ TilePlace() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    first_row = warp * 4 * kRows + lane / 8;
    first_column = lane % 8;
  }
  __device__ int row(int r) const { return first_row + 4 * r; }
  __device__ int column(int c) const { return first_column + 8 * c; }        // of the scores
  __device__ int feature(int f) const { return 4 * first_column + 32 * f; }  // the first of four
};

// tile (kRows, kD) = factor x[row, :], zero beyond `rows` rows and D features. x points at the
// tile's first row. A 16-byte chunk is inside or outside as a whole: D is a multiple of 8.
template <int kRows, int kD>
__device__ __forceinline__ void load_tile(float* tile, const float* x, int64_t stride, int64_t rows,
                                          int64_t D, float factor, bool vectors) {
  constexpr int kVec = kVecSize<float>;
  constexpr int kChunks = kD / kVec;
  for (int e = static_cast<int>(threadIdx.x); e < kRows * kChunks; e += kAttentionThreads) {
    const int row = e / kChunks;
    const int d = e % kChunks * kVec;
    float values[kVec] = {};
    if (row < rows && d < D) {
      const float* source = x + row * stride + d;
      if (vectors) {
        load_vec(values, source);
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) values[i] = source[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] *= factor;
    store_vec(tile + row * (kD + kTilePad) + d, values);
  }
}

// scores[r][c] = sum over d of a[row(r)][d] b[column(c)][d]
template <int kD, int kTileRows, int kColumns>
__device__ __forceinline__ void multiply_transposed(
    float (&scores)[TilePlace<kTileRows>::kRows][kColumns], const float* a, const float* b,
    const TilePlace<kTileRows>& place) {
  constexpr int kRows = TilePlace<kTileRows>::kRows;
  constexpr int kStride = kD + kTilePad;
  a += place.first_row * kStride;
  b += place.first_column * kStride;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) scores[r][c] = 0.0f;
  }
#pragma unroll 2
  for (int d = 0; d < kD; d += 4) {
    float x[kRows][4];
    float y[kColumns][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) load_vec(x[r], a + 4 * r * kStride + d);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) load_vec(y[c], b + 8 * c * kStride + d);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[r][c] = fmaf(x[r][i], y[c][i], scores[r][c]);
      }
    }
  }
}

// Hands a warp's scores to its other lanes: tile[row(r)][column(c)] = scores[r][c].
template <int kTileRows, int kColumns>
__device__ __forceinline__ void store_scores(
    float* tile, const float (&scores)[TilePlace<kTileRows>::kRows][kColumns],
    const TilePlace<kTileRows>& place) {
  __syncwarp();  // the readers of the previous scores are done
#pragma unroll
  for (int r = 0; r < TilePlace<kTileRows>::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      tile[place.row(r) * (8 * kColumns + kScorePad) + place.column(c)] = scores[r][c];
    }
  }
  __syncwarp();
}

// out[r][4 f + i] += sum over j of p[row(r)][j] b[j][feature(f) + i]; p from store_scores.
template <int kD, int kTileColumns, int kTileRows>
__device__ __forceinline__ void multiply_add(float (&out)[TilePlace<kTileRows>::kRows][kD / 8],
                                             const float* p, const float* b,
                                             const TilePlace<kTileRows>& place) {
  constexpr int kRows = TilePlace<kTileRows>::kRows;
  p += place.first_row * (kTileColumns + kScorePad);
#pragma unroll 1
  for (int j = 0; j < kTileColumns; j += 4) {
    float x[kRows][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) load_vec(x[r], p + 4 * r * (kTileColumns + kScorePad) + j);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int f = 0; f < kD / 32; ++f) {
        float y[4];
        load_vec(y, b + (j + k) * (kD + kTilePad) + place.feature(f));
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            out[r][4 * f + i] = fmaf(x[r][k], y[i], out[r][4 * f + i]);
          }
        }
      }
    }
  }
}

// x[row(r), :] = factor[r] values[r] for rows below `rows`; x points at the tile's first row.
template <int kD, int kTileRows>
__device__ __forceinline__ void store_rows(
    float* x, int64_t stride, int64_t rows, int64_t D,
    const float (&values)[TilePlace<kTileRows>::kRows][kD / 8],
    const float (&factor)[TilePlace<kTileRows>::kRows], const TilePlace<kTileRows>& place,
    bool vectors) {
  const auto store_by = [&](auto width) {
    constexpr int kWidth = width;
#pragma unroll
    for (int r = 0; r < TilePlace<kTileRows>::kRows; ++r) {
      if (place.row(r) >= rows) continue;
#pragma unroll
      for (int i = 0; i < kD / 8; i += kWidth) {
        const int d = place.feature(i / 4) + i % 4;
        if (d >= D) continue;
        float part[kWidth];
#pragma unroll
        for (int e = 0; e < kWidth; ++e) part[e] = factor[r] * values[r][i + e];
        store_vec(x + place.row(r) * stride + d, part);
      }
    }
  };
  if (vectors) {
    store_by(std::integral_constant<int, 4>{});
  } else {
    store_by(std::integral_constant<int, 1>{});
  }
}

// Whether query i and key j exist and i sees j.
__device__ __forceinline__ bool visible(const AttentionShape& s, int64_t i, int64_t j) {
  return i < s.Tq && j < s.Tk && (!s.causal || j <= i + s.Tk - s.Tq);
}

// Whether all of a tile is visible, so that it needs no mask.
__device__ __forceinline__ bool all_visible(const AttentionShape& s, int64_t q0, int queries,
                                            int64_t k0, int keys) {
  return q0 + queries <= s.Tq && k0 + keys <= s.Tk && visible(s, q0, k0 + keys - 1);
}

// One past the last key that any query of [q0, q0 + queries) sees; may be negative.
__device__ __forceinline__ int64_t keys_end(const AttentionShape& s, int64_t q0, int queries) {
  const int64_t q_end = q0 + queries < s.Tq ? q0 + queries : s.Tq;
  return s.causal ? q_end + s.Tk - s.Tq : s.Tk;
}

template <class T>
__device__ __forceinline__ T* at(T* x, const int64_t (&strides)[3], int64_t b, int64_t t,
                                 int64_t h) {
  return x + b * strides[0] + t * strides[1] + h * strides[2];
}

// Whether every row of a (B, T, H, D) tensor allows 16-byte accesses. For the host.
template <class T>
bool rows_aligned(const T* x, const int64_t (&strides)[3]) {
  const int64_t all = strides[0] | strides[1] | strides[2];  // kVecSize is a power of two
  return aligned16({x}) && all % kVecSize<T> == 0;
}

template <class T>
bool rows_aligned(const AttentionForward<T>& x, const AttentionShape& s) {
  return rows_aligned(x.o, s.o_strides) && rows_aligned(x.q, s.q_strides) &&
         rows_aligned(x.k, s.k_strides) && rows_aligned(x.v, s.v_strides);
}
template <class T>
bool rows_aligned(const AttentionBackward<T>& x, const AttentionShape& s) {
  return rows_aligned(x.dq, s.dq_strides) && rows_aligned(x.dk, s.dk_strides) &&
         rows_aligned(x.dv, s.dv_strides) && rows_aligned(x.d_o, s.do_strides) &&
         rows_aligned(AttentionForward<const T>{x.o, nullptr, x.q, x.k, x.v}, s);
}

// Notes once why a slower kernel runs than the GPU supports: `refusal`, or unaligned rows. No note
// when requested (s.portable) or when the GPU has no better kernel.
template <class Tensors>
void note_slow_attention(const char* direction, const Tensors& x, const AttentionShape& s,
                         const char* refusal, Stream stream) {
  if (s.portable) return;
  if (refusal == kPortableIsFaster) refusal = nullptr;
  const auto note = [&](const char* reason) {
    note_slow_path(cat("flash attention's ", direction, " with head size ", s.D), reason);
  };
  constexpr bool kBf16 = std::is_same_v<decltype(x.q), const bfloat16*>;
  if (refusal != nullptr && (!kBf16 || traits_of(stream).hopper_code))
    note(refusal);
  else if (!rows_aligned(x, s))
    note("rows that are not aligned to 16 bytes are read singly");
}

// Calls body(integral_constant<int, index>) for a table with that index; else throws.
template <class Tile, size_t N, class Body>
void with_tile(const Tile (&)[N], int index, Body body) {
  constexpr int kCount = N;
  const auto try_each = [&]<int... I>(std::integer_sequence<int, I...>) {
    return ((index == I && (body(std::integral_constant<int, I>{}), true)) || ...);
  };
  QUERN_CHECK(try_each(std::make_integer_sequence<int, kCount>{}), "attention: tile index is ",
              index, ", expected less than ", kCount);
}

}  // namespace quern::kernels::cuda
