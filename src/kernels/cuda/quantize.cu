// BF16 to FP8, bound by memory: 2 bytes read and 1 written an element, or 2 with the transpose.
//
// A block of threads has a tile of 128 x 128 elements, which is one block of scales along either
// axis, and a thread 4 x 8 of them in registers: it reads 16 bytes of each of its rows. A row's
// maximum comes from the 16 lanes that share it, a column's and the tile's through shared memory.
// The transpose too goes through shared memory, so that it is written in rows of 128 bytes. A tile
// that lies within its matrix (kWhole) needs no checks of bounds.
#include "kernels/quantize.h"

#include <cuda_fp8.h>

#include "base/slow_path.h"
#include "kernels/cuda/norm_forward.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kTile = static_cast<int>(kScaleBlock);
constexpr int kRows = 4, kCols = 8;                            // of a thread
constexpr int kAcross = kTile / kCols, kDown = kTile / kRows;  // threads in each direction
constexpr int kThreads = kAcross * kDown, kWarps = kThreads / 32;
constexpr int kWords = kCols / 2;  // of a row: 2 elements each
static_assert(kAcross == 16);      // half a warp has a row of patches

struct Sizes {
  int64_t rows, cols;                // of the matrix
  int64_t stored_rows, stored_cols;  // see fp8_extent
};

// 8 neighbours of a row as they lie in memory.
using Words = uint4;

// p[0..count), the rest 0; all of them in one access if `vectors`, as in a whole tile.
template <bool kWhole>
__device__ __forceinline__ Words load_words(const bfloat16* p, int64_t count, bool vectors) {
  if constexpr (kWhole) {
    return load_raw<kCols>(p);
  } else {
    if (vectors && count >= kCols) return load_raw<kCols>(p);
    uint32_t words[kWords] = {};
#pragma unroll
    for (int e = 0; e < kCols; ++e) {
      if (e < count) words[e / 2] |= static_cast<uint32_t>(p[e].bits) << (16 * (e % 2));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <bool kWhole>
__device__ __forceinline__ void load_floats(float (&x)[kCols], const bfloat16* p, int64_t count,
                                            bool vectors) {
  unpack<bfloat16>(x, load_words<kWhole>(p, count, vectors));
}

template <bool kWhole>
__device__ __forceinline__ void load_floats(float (&x)[kCols], const float* p, int64_t count,
                                            bool vectors) {
  if (kWhole || (vectors && count >= kCols)) {
    load_vec(x, p);
  } else {
#pragma unroll
    for (int e = 0; e < kCols; ++e) x[e] = e < count ? p[e] : 0.0f;
  }
}

__device__ __forceinline__ Words pack_words(const float (&x)[kCols]) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                    pack_bf16(x[6], x[7]));
}

// Sources of a matrix: load() gives `count` (at most 8) neighbours from (row, col) on. First of
// kTiles tiles, `apart` columns apart; then of kParked separate matrices, `apart` wide, whose
// transpose alone is wanted. kBlocks: blocks of threads at a time.

struct MatrixRows {
  static constexpr int kTiles = 1, kParked = 0, kBlocks = 3;
  const bfloat16* x;
  int64_t ld;
  bool vectors;

  __device__ int64_t apart() const { return 0; }
  template <bool kWhole>
  __device__ void load(Words (&out)[1], int64_t row, int64_t col, int64_t count) const {
    out[0] = load_words<kWhole>(x + row * ld + col, count, vectors);
  }
};

// The output of a norm of x (rows, C); mean and b only where kCentred.
template <class TX, bool kCentred>
struct NormedRows {
  static constexpr int kTiles = 1, kParked = 0, kBlocks = 2;
  const TX* x;
  const float *w, *b, *mean, *rstd;
  int64_t C;
  bool vectors;

  __device__ int64_t apart() const { return 0; }
  template <bool kWhole>
  __device__ void load(Words (&words)[1], int64_t row, int64_t col, int64_t count) const {
    float in[kCols], weight[kCols], bias[kCols] = {}, out[kCols];
    load_floats<kWhole>(in, x + row * C + col, count, vectors);
    load_floats<kWhole>(weight, w + col, count, vectors);
    if constexpr (kCentred) load_floats<kWhole>(bias, b + col, count, vectors);
    const float m = kCentred ? mean[row] : 0.0f, r = rstd[row];
#pragma unroll
    for (int e = 0; e < kCols; ++e) {
      const bool inside = kWhole || e < count;  // the padding is zero, also of a row with a NaN
      out[e] = inside ? norm_output<kCentred>(in[e], m, r, weight[e], bias[e]) : 0.0f;
    }
    words[0] = pack_words(out);
  }
};

struct SwigluOutput {
  static constexpr int kTiles = 1, kParked = 0, kBlocks = 3;
  const bfloat16* gate_up;
  int64_t F;
  bool vectors;

  __device__ int64_t apart() const { return 0; }
  template <bool kWhole>
  __device__ void load(Words (&words)[1], int64_t row, int64_t col, int64_t count) const {
    const bfloat16* const at = gate_up + 2 * row * F + col;
    float gate[kCols], up[kCols], out[kCols];
    load_floats<kWhole>(gate, at, count, vectors);
    load_floats<kWhole>(up, at + F, count, vectors);
    swiglu<bfloat16>(out, gate, up);
    words[0] = pack_words(out);
  }
};

// The gradients of the gate and of up at the same place, from one read of their inputs, and if
// kOutput SwiGLU's output.
template <bool kOutput>
struct SwigluGradients {
  static constexpr int kTiles = 2, kParked = kOutput ? 1 : 0, kBlocks = 2;
  const bfloat16* gate_up;
  const bfloat16* dy;
  int64_t F;
  bool vectors;

  __device__ int64_t apart() const { return F; }
  template <bool kWhole>
  __device__ void load(Words (&words)[kTiles + kParked], int64_t row, int64_t col,
                       int64_t count) const {
    const bfloat16* const at = gate_up + 2 * row * F + col;
    float gate[kCols], up[kCols], grad[kCols], d_gate[kCols], d_up[kCols], out[kCols];
    load_floats<kWhole>(gate, at, count, vectors);
    load_floats<kWhole>(up, at + F, count, vectors);
    load_floats<kWhole>(grad, dy + row * F + col, count, vectors);
    swiglu_gradients<bfloat16>(d_gate, d_up, out, gate, up, grad);
    words[0] = pack_words(d_gate);
    words[1] = pack_words(d_up);
    if constexpr (kOutput) {
      swiglu<bfloat16>(out, gate, up);
      words[2] = pack_words(out);
    }
  }
};

// The gradient, for an F that is no multiple of 128: a tile may have parts of both halves.
struct SwigluGradientOfAnyWidth {
  static constexpr int kTiles = 1, kParked = 0, kBlocks = 2;
  SwigluGradients<false> halves;
  bool vectors;  // as of the halves; then 8 neighbours are of one

  __device__ int64_t apart() const { return 0; }
  template <bool kWhole>
  __device__ void load(Words (&words)[1], int64_t row, int64_t col, int64_t count) const {
    const auto of_half = [&](int64_t at, int64_t neighbours) {
      const bool of_gate = at < halves.F;
      Words both[2];
      halves.load<kWhole>(both, row, of_gate ? at : at - halves.F, neighbours);
      return of_gate ? both[0] : both[1];
    };
    if (kWhole || vectors) {
      words[0] = of_half(col, count);
    } else {
      uint32_t packed[kWords] = {};
#pragma unroll
      for (int e = 0; e < kCols; ++e) {
        if (e < count) packed[e / 2] |= (of_half(col + e, 1).x & 0xffffu) << (16 * (e % 2));
      }
      words[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
};

// Magnitudes of two elements a word. They order as unsigned integers do, and NaN is above all.
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
  return __vmaxu2(a, b & 0x7fff7fffu);
}

__device__ __forceinline__ uint32_t shuffled_max(uint32_t x, int lanes) {
  return __vmaxu2(x, __shfl_xor_sync(0xffffffffu, x, lanes));
}

// The larger of both halves, in both.
__device__ __forceinline__ uint32_t larger_half(uint32_t x) {
  return __vmaxu2(x, __byte_perm(x, x, 0x1032));
}

__device__ __forceinline__ BlockScale scale_of(uint32_t largest) {  // in the lower half
  return BlockScale(__uint_as_float(largest << 16));
}

// Four floats in FP8, the first in the lowest byte.
__device__ __forceinline__ uint32_t pack_fp8(float a, float b, float c, float d) {
  const auto pair = [](float low, float high) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
  };
  return pair(a, b) | pair(c, d) << 16;
}

// A thread's elements of a tile.
struct Patch {
  uint32_t words[kRows][kWords];

  __device__ __forceinline__ void set_row(int row, const Words& from) {
    words[row][0] = from.x, words[row][1] = from.y, words[row][2] = from.z, words[row][3] = from.w;
  }
  __device__ __forceinline__ float at(int row, int col) const {
    const uint32_t pair = words[row][col / 2];
    return __uint_as_float(col % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  }
};

// Where a thread's patch is in its tile, in patches, and the tile's first element.
struct Place {
  int down, across, warp, lane;
  int64_t row, col;
};

struct Shared {
  alignas(16) uint32_t turned[kTile][kDown];  // FP8: of a column, 4 rows a word
  uint16_t of_columns[kWarps][kTile];         // largest magnitudes
  float inverse[kTile];                       // of the columns' scales
  uint32_t of_tile[kWarps];
};

// The largest magnitudes of the patch's rows in the tile, rows 2 i and 2 i + 1 in word i.
__device__ __forceinline__ void row_maxima(uint32_t (&largest)[kRows / 2], const Patch& patch) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    uint32_t of_row[2] = {};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) of_row[j] = larger(of_row[j], patch.words[2 * i + j][w]);
      of_row[j] = larger_half(of_row[j]);
    }
    largest[i] = __byte_perm(of_row[0], of_row[1], 0x5410);
#pragma unroll
    for (int lanes = kAcross / 2; lanes > 0; lanes /= 2) {
      largest[i] = shuffled_max(largest[i], lanes);
    }
  }
}

// The largest magnitude of the tile. All threads call it.
__device__ __forceinline__ uint32_t tile_maximum(const uint32_t (&of_rows)[kRows / 2],
                                                 const Place& place, Shared& shared) {
  uint32_t largest = larger_half(__vmaxu2(of_rows[0], of_rows[1]));
  largest = shuffled_max(largest, kAcross) & 0xffffu;
  if (place.lane == 0) shared.of_tile[place.warp] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) largest = max(largest, shared.of_tile[warp]);
  return largest;
}

template <bool kWhole>
__device__ __forceinline__ void store_rows(const Fp8Output& out, const Patch& patch,
                                           const uint32_t (&of_rows)[kRows / 2], uint32_t of_tile,
                                           const Place& place, const Sizes& sizes) {
  const ScaleLayout layout{out.blocks, sizes.stored_rows, sizes.stored_cols};
  const int64_t first_row = place.row + place.down * kRows;
  const int64_t col = place.col + place.across * kCols;
  // A lane divides for one of the four rows.
  const int own = place.lane & (kRows - 1);
  const uint32_t pair = own < 2 ? of_rows[0] : of_rows[1];
  const bool in_tiles = out.blocks == ScaleBlocks::tiles;
  const BlockScale scale =
      scale_of(in_tiles ? of_tile : (own % 2 == 0 ? pair & 0xffffu : pair >> 16));
  if (place.across < kRows &&
      (kWhole || (first_row + own < sizes.stored_rows && place.col < sizes.stored_cols))) {
    out.scales[layout.at(first_row + own, place.col)] = scale.scale;
  }
  float8* const to = out.values + first_row * sizes.stored_cols + col;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float inverse = __shfl_sync(0xffffffffu, scale.inverse, r, kAcross);
    if (!kWhole && (first_row + r >= sizes.stored_rows || col >= sizes.stored_cols)) continue;
    const auto at = [&](int c) { return patch.at(r, c) * inverse; };
    *reinterpret_cast<uint2*>(to + r * sizes.stored_cols) =
        make_uint2(pack_fp8(at(0), at(1), at(2), at(3)), pack_fp8(at(4), at(5), at(6), at(7)));
  }
}

// Puts the columns' scales in their place and their inverses in shared memory. All threads call it.
template <bool kWhole>
__device__ __forceinline__ void scale_columns(const Fp8Output& out, const Patch& patch,
                                              uint32_t of_tile, const Place& place,
                                              const Sizes& sizes, Shared& shared) {
  const bool in_tiles = out.blocks == ScaleBlocks::tiles;
  if (!in_tiles) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t largest = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) largest = larger(largest, patch.words[r][w]);
      largest = shuffled_max(largest, kAcross);
      if (place.lane < kAcross) {
        *reinterpret_cast<uint32_t*>(&shared.of_columns[place.warp][place.across * kCols + 2 * w]) =
            largest;
      }
    }
    __syncthreads();
  }
  const int c = static_cast<int>(threadIdx.x);
  if (c < kTile) {
    uint32_t largest = of_tile;
    if (!in_tiles) {
      largest = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        largest = max(largest, uint32_t{shared.of_columns[warp][c]});
      }
    }
    const BlockScale scale = scale_of(largest);
    shared.inverse[c] = scale.inverse;
    if (kWhole || place.col + c < sizes.stored_cols) {
      const ScaleLayout layout{out.blocks, sizes.stored_cols, sizes.stored_rows};
      out.scales[layout.at(place.col + c, place.row)] = scale.scale;
    }
  }
  __syncthreads();
}

// Writes the transpose of the tile. A thread's 4 rows of a column are a word of shared memory. An
// XOR with twice the patch's place in its row permutes a column's words, so that the writes of a
// warp use all banks. Pairs of words stay together, so that reads of a column in pairs do too.
template <bool kWhole>
__device__ __forceinline__ void store_columns(const Fp8Output& out, const Patch& patch,
                                              const Place& place, const Sizes& sizes,
                                              Shared& shared) {
  float inverse[kCols];
  load_vec(inverse, &shared.inverse[place.across * kCols]);
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const auto at = [&](int r) { return patch.at(r, c) * inverse[c]; };
    shared.turned[place.across * kCols + c][place.down ^ (2 * place.across)] =
        pack_fp8(at(0), at(1), at(2), at(3));
  }
  __syncthreads();
  constexpr int kPairs = kDown / 2;  // of words, in a column
  constexpr int kAtOnce = kThreads / kPairs;
  const int pair = static_cast<int>(threadIdx.x % kPairs);
  const int column = static_cast<int>(threadIdx.x / kPairs);
  const int64_t row = place.row + pair * 2 * kRows;
  if (!kWhole && row >= sizes.stored_rows) return;
  float8* const to = out.values + (place.col + column) * sizes.stored_rows + row;
#pragma unroll
  for (int first = 0; first < kTile; first += kAtOnce) {
    const int c = first + column;
    if (!kWhole && place.col + c >= sizes.stored_cols) continue;
    *reinterpret_cast<uint2*>(to + first * sizes.stored_rows) =
        *reinterpret_cast<const uint2*>(&shared.turned[c][2 * (pair ^ (c / kCols))]);
  }
}

// Writes a tile and its transpose, as far as each is wanted. All threads call it.
template <bool kWhole>
__device__ __forceinline__ void store_tile(const Fp8Output& out, const Fp8Output& out_t,
                                           const Patch& patch, const Place& place,
                                           const Sizes& sizes, Shared& shared) {
  const bool tiles = out.blocks == ScaleBlocks::tiles || out_t.blocks == ScaleBlocks::tiles;
  uint32_t of_rows[kRows / 2] = {}, of_tile = 0;
  if (tiles || out.values != nullptr) row_maxima(of_rows, patch);
  if (tiles) of_tile = tile_maximum(of_rows, place, shared);
  if (out.values != nullptr) store_rows<kWhole>(out, patch, of_rows, of_tile, place, sizes);
  if (out_t.values != nullptr) {
    scale_columns<kWhole>(out_t, patch, of_tile, place, sizes, shared);
    store_columns<kWhole>(out_t, patch, place, sizes, shared);
  }
}

// parked_t: the transpose of the source's parked matrix.
struct Outputs {
  Fp8Output out, out_t, parked_t;
};

// The tiles at `place`. The parked matrix waits in shared memory: a thread has no registers for it.
template <class Source, bool kWhole>
__device__ __forceinline__ void quantize_tiles(const Outputs& outputs, const Source& source,
                                               Place place, const Sizes& sizes, Shared& shared,
                                               Words* parked) {
  constexpr int kAll = Source::kTiles + Source::kParked;
  Patch patches[Source::kTiles] = {};
  const int64_t first_row = place.row + place.down * kRows;
  const int64_t first_col = place.col + place.across * kCols;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    Words words[kAll] = {};
    if (kWhole || (first_row + r < sizes.rows && first_col < sizes.cols)) {
      source.template load<kWhole>(words, first_row + r, first_col, sizes.cols - first_col);
    }
#pragma unroll
    for (int i = 0; i < Source::kTiles; ++i) patches[i].set_row(r, words[i]);
    if constexpr (Source::kParked == 1) parked[r * kThreads + threadIdx.x] = words[kAll - 1];
  }
  Place at = place;
#pragma unroll
  for (int i = 0; i < Source::kTiles; ++i) {
    if (i > 0) __syncthreads();  // the tile takes the shared memory of the one before
    store_tile<kWhole>(outputs.out, outputs.out_t, patches[i], at, sizes, shared);
    at.col += source.apart();
  }
  if constexpr (Source::kParked == 1) {
    __syncthreads();
    Patch patch;
#pragma unroll
    for (int r = 0; r < kRows; ++r) patch.set_row(r, parked[r * kThreads + threadIdx.x]);
    const Sizes own{sizes.rows, source.apart(), sizes.stored_rows, source.apart()};
    store_tile<kWhole>({}, outputs.parked_t, patch, place, own, shared);
  }
}

// One tile of each of the source's, a row of tiles after the other.
template <class Source>
__global__ void __launch_bounds__(kThreads, Source::kBlocks)
    quantize_kernel(Outputs outputs, Source source, Sizes sizes, uint32_t across) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Words* const parked = reinterpret_cast<Words*>(memory + sizeof(Shared));
  Place place;
  place.lane = static_cast<int>(threadIdx.x % 32);
  place.warp = static_cast<int>(threadIdx.x / 32);
  place.down = static_cast<int>(threadIdx.x / kAcross);
  place.across = static_cast<int>(threadIdx.x % kAcross);
  place.row = int64_t{blockIdx.x / across} * kTile;
  place.col = int64_t{blockIdx.x % across} * kTile;
  if (source.vectors && place.row + kTile <= sizes.rows && place.col + kTile <= sizes.cols) {
    quantize_tiles<Source, true>(outputs, source, place, sizes, shared, parked);
  } else {
    quantize_tiles<Source, false>(outputs, source, place, sizes, shared, parked);
  }
}

template <class Source>
void start(const Outputs& outputs, const Source& source, int64_t rows, int64_t cols,
           Stream stream) {
  static_assert(sizeof(Shared) % sizeof(Words) == 0);
  constexpr size_t kShared = sizeof(Shared) + Source::kParked * kRows * kThreads * sizeof(Words);
  const Sizes sizes{rows, cols, fp8_extent(rows), fp8_extent(cols)};
  const int64_t across = ceil_div(sizes.stored_cols, int64_t{kTile}) / Source::kTiles;
  const int64_t tiles = ceil_div(sizes.stored_rows, int64_t{kTile}) * across;
  launch(quantize_kernel<Source>, one_block_each(tiles), dim3(kThreads), kShared, stream, outputs,
         source, sizes, static_cast<uint32_t>(across));
}

// Notes rows that 16-byte accesses cannot read. Small matrices are not noted.
void note_scalar_reads(bool vectors, int64_t rows, int64_t cols) {
  constexpr int64_t kSmall = 1 << 22;
  if (vectors || rows * cols < kSmall) return;
  note_slow_path("quantizing to FP8", cat("rows of ", cols, " elements, or their memory, are not ",
                                          "aligned to 16 bytes, as multiples of 8 are"));
}

}  // namespace

void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream stream) {
  const bool vectors = ld % kCols == 0 && aligned16({x});
  note_scalar_reads(vectors, rows, cols);
  start({out, out_t, {}}, MatrixRows{x, ld, vectors}, rows, cols, stream);
}

template <class TX>
void quantize_norm(const Fp8Output& out, const Fp8Output& out_t, const NormOutput<TX>& norm,
                   int64_t rows, int64_t C, Stream stream) {
  const bool vectors = C % kCols == 0 && aligned16({norm.x, norm.w, norm.b});
  note_scalar_reads(vectors, rows, C);
  const auto run = [&]<bool kCentred>(std::bool_constant<kCentred>) {
    const NormedRows<TX, kCentred> source{norm.x, norm.w, norm.b, norm.mean, norm.rstd, C, vectors};
    start({out, out_t, {}}, source, rows, C, stream);
  };
  norm.b == nullptr ? run(std::false_type()) : run(std::true_type());
}
template void quantize_norm(const Fp8Output&, const Fp8Output&, const NormOutput<bfloat16>&,
                            int64_t, int64_t, Stream);
template void quantize_norm(const Fp8Output&, const Fp8Output&, const NormOutput<float>&, int64_t,
                            int64_t, Stream);

void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream stream) {
  const bool vectors = F % kCols == 0 && aligned16({gate_up});
  note_scalar_reads(vectors, rows, F);
  start({out, out_t, {}}, SwigluOutput{gate_up, F, vectors}, rows, F, stream);
}

void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t,
                              const Fp8Output& output_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream stream) {
  const bool vectors = F % kCols == 0 && aligned16({gate_up, dy});
  note_scalar_reads(vectors, rows, F);
  const Outputs outputs{out, out_t, output_t};
  const auto run = [&](const auto& source) { start(outputs, source, rows, 2 * F, stream); };
  const bool with_output = output_t.values != nullptr;
  if (F % kTile == 0) {
    if (with_output) return run(SwigluGradients<true>{gate_up, dy, F, vectors});
    return run(SwigluGradients<false>{gate_up, dy, F, vectors});
  }
  run(SwigluGradientOfAnyWidth{{gate_up, dy, F, vectors}, vectors});
  if (with_output) quantize_swiglu({}, output_t, gate_up, rows, F, stream);
}

}  // namespace quern::kernels::cuda
