// Matrix products by Eigen. D is cut into tiles whose sizes depend only on the problem. The cores
// share the tiles of all matrices of the batch; each tile is multiplied on one core.
#include "kernels/gemm.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "kernels/common/parallel.h"
#include "kernels/cpu/eigen.h"

namespace quern::kernels::cpu {
namespace {

// Tall tiles pack B's panel less often; small ones give work to more cores.
constexpr int64_t kTileCols = 768;
int64_t tile_rows(int64_t m) {
  return m >= 512 ? 128 : 64;
}
// Depth at which bfloat16 blocks are widened, so that they stay in the cache.
constexpr int64_t kDepth = 256;

// The number of units of `step` in `count` elements; the last unit may be shorter.
int64_t units(int64_t count, int64_t step) {
  return (count + step - 1) / step;
}

// One operand of one matrix of the batch, in its storage type.
template <class T>
struct Stored {
  const T* data;
  int64_t stride;
  bool transposed;

  // Points to row (for B, depth) `row` and column `col` of the operand as it is multiplied.
  const T* at(int64_t row, int64_t col) const {
    return transposed ? data + col * stride + row : data + row * stride + col;
  }
};

// D's tile at (i, j), `rows` by `cols`.
struct Tile {
  int64_t i, j, rows, cols;
};

template <class A>
void scale_rows(A* d, int64_t stride, const Tile& tile, A beta) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    A* row = d + r * stride;
    vector_for(0, tile.cols, [=](int64_t c) { row[c] *= beta; });
  }
}

template <class A>
void copy_rows(A* d, const A* c, int64_t stride, const Tile& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::copy_n(c + r * stride, tile.cols, d + r * stride);
  }
}

// float and double: Eigen reads the operands where they are.
template <class A>
void multiply_tile(A* d, const A* c, const Stored<A>& a, const Stored<A>& b, const Gemm& g,
                   const Tile& tile) {
  A* out = d + tile.i * g.ldd + tile.j;
  const A beta = static_cast<A>(g.beta);
  if (c != d) copy_rows(out, c + tile.i * g.ldd + tile.j, g.ldd, tile);
  if (beta != A(0) && beta != A(1)) scale_rows(out, g.ldd, tile, beta);
  multiply<A>(out, g.ldd, {a.at(tile.i, 0), a.stride, a.transposed},
              {b.at(0, tile.j), b.stride, b.transposed}, tile.rows, tile.cols, g.k,
              static_cast<A>(g.alpha), beta != A(0));
}

// Widens the (rows, cols) block at (row, col) in its stored layout; returns it as an operand.
template <class T>
Operand<float> widen(float* block, const Stored<T>& x, int64_t row, int64_t col, int64_t rows,
                     int64_t cols) {
  const int64_t lines = x.transposed ? cols : rows, length = x.transposed ? rows : cols;
  const T* from = x.at(row, col);
  for (int64_t line = 0; line < lines; ++line) {
    const T* source = from + line * x.stride;
    float* target = block + line * length;
    vector_for(0, length, [=](int64_t i) { target[i] = static_cast<float>(source[i]); });
  }
  return {block, length, x.transposed};
}

// bfloat16: blocks are widened to float and summed in a float tile, which is rounded once.
template <class TD, class T>
void multiply_tile_widened(TD* d, const TD* c, const Stored<T>& a, const Stored<T>& b,
                           const Gemm& g, const Tile& tile) {
  const int64_t depth = std::min(kDepth, g.k);
  const int64_t a_size = tile.rows * depth, b_size = depth * tile.cols;
  const auto block =
      std::make_unique_for_overwrite<float[]>(a_size + b_size + tile.rows * tile.cols);
  float *a_block = block.get(), *b_block = a_block + a_size, *sum = b_block + b_size;

  std::fill_n(sum, tile.rows * tile.cols, 0.0f);
  for (int64_t k = 0; k < g.k; k += depth) {
    const int64_t slice = std::min(depth, g.k - k);
    const Operand<float> left = widen(a_block, a, tile.i, k, tile.rows, slice);
    const Operand<float> right = widen(b_block, b, k, tile.j, slice, tile.cols);
    multiply<float>(sum, tile.cols, left, right, tile.rows, tile.cols, slice, 1.0f, true);
  }

  const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  for (int64_t r = 0; r < tile.rows; ++r) {
    TD* out = d + (tile.i + r) * g.ldd + tile.j;
    const TD* added = c + (tile.i + r) * g.ldd + tile.j;
    const float* row = sum + r * tile.cols;
    vector_for(0, tile.cols, [=](int64_t j) {
      const float before = beta == 0.0f ? 0.0f : beta * static_cast<float>(added[j]);
      out[j] = static_cast<TD>(alpha * row[j] + before);
    });
  }
}

}  // namespace

template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& packed, const GemmResources&, Stream) {
  Gemm g = packed;
  if (g.lda == 0) g.lda = g.transpose_a ? g.m : g.k;
  if (g.ldb == 0) g.ldb = g.transpose_b ? g.k : g.n;
  if (g.ldd == 0) g.ldd = g.n;
  const int64_t height = tile_rows(g.m);
  const int64_t tiles_down = units(g.m, height), tiles_across = units(g.n, kTileCols);
  const int64_t tiles = tiles_down * tiles_across;
  const int64_t grain =
      row_grain(std::min(g.m, height) * std::min(g.n, kTileCols) * (g.k + 1) / 64);

  parallel_for(g.batch * tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t matrix = piece / tiles, tile = piece % tiles;
      const int64_t i = tile / tiles_across * height, j = tile % tiles_across * kTileCols;
      const Tile at{i, j, std::min(height, g.m - i), std::min(kTileCols, g.n - j)};
      const Stored<T> left{a + matrix * g.stride_a, g.lda, g.transpose_a};
      const Stored<T> right{b + matrix * g.stride_b, g.ldb, g.transpose_b};
      TD* out = d + matrix * g.stride_d;
      const TD* c = g.c == nullptr ? out : static_cast<const TD*>(g.c) + matrix * g.stride_d;
      if constexpr (std::is_same_v<T, bfloat16>) {
        multiply_tile_widened(out, c, left, right, g, at);
      } else {
        multiply_tile(out, c, left, right, g, at);
      }
    }
  });
}

template decltype(gemm<float, float>) gemm<float, float>;
template decltype(gemm<bfloat16, bfloat16>) gemm<bfloat16, bfloat16>;
template decltype(gemm<float, bfloat16>) gemm<float, bfloat16>;
template decltype(gemm<double, double>) gemm<double, double>;

}  // namespace quern::kernels::cpu
