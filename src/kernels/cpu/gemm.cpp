// Matrix products. Quern's own: all cores pack B in panels (gemm_panels.h), then share the tiles of
// D, each of which packs the rows of A that it multiplies; with at most kFew rows or columns, the
// other operand is read once where it is. The order of each sum depends on the shape alone.
// Eigen's: for double, and for float without Gemm::split.
#include "kernels/gemm.h"

#include <algorithm>
#include <type_traits>

#include "base/round_up.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/eigen.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

// A tile of D has Panels::kTileRows rows and kTileCols columns at most. Its rows of A are packed
// anew for each tile, in a small part of the time that the columns take, and do not leave the inner
// caches.
constexpr int64_t kTileCols = 512;
// The most elements of B that are packed at a time, if that is at least a panel.
constexpr int64_t kPacked = int64_t{4} << 20;

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

// The part of a batch whose B is packed and multiplied at a time.
struct Parts {
  int64_t matrices, cols;  // columns in whole panels

  // For panels of kCols columns and `steps` elements in each of these.
  Parts(const Gemm& g, int kCols, int64_t steps) {
    const int64_t k = std::max<int64_t>(steps, 1);
    cols = std::min(round_up(g.n, kCols), std::max<int64_t>(kPacked / k / kCols, 1) * kCols);
    const int64_t one = std::max<int64_t>(cols * k, 1);
    matrices = std::clamp<int64_t>(kPacked / one, 1, std::max<int64_t>(g.batch, 1));
  }
};

// Bytes that the packed part of B takes at most. Grows with every extent, so the scratch memory of
// a product also serves parts of it.
template <class Panels>
int64_t packed_bytes(const Gemm& g) {
  constexpr int kCols = Panels::kCols;
  const int64_t steps = Panels::steps(g.k);
  return std::min(g.batch * round_up(g.n, kCols) * steps, std::max(kPacked, kCols * steps)) *
         static_cast<int64_t>(sizeof(typename Panels::Element));
}

// Packs lines [first, first + count) of an operand, from `depth` on: rows of A (kLeft), columns of
// B.
template <bool kLeft, class T>
void pack_panels(typename Panels<T>::Element* panels, const Stored<T>& x, int64_t first,
                 int64_t count, int64_t depth, int64_t k) {
  const T* from = kLeft ? x.at(first, depth) : x.at(depth, first);
  Panels<T>::template pack<kLeft>(panels, from, x.stride, x.transposed != kLeft, count, k);
}

// A tile of D: `down` by `across` panels from row i and column j of one matrix. Its sums are in
// panels of columns.
struct Tile {
  int64_t i, j, down, across;
};

// `packed` has room for the tile's rows of a slice of A.
template <class T, class Element = typename Panels<T>::Element>
void multiply_tile(float* sum, Element* packed, const Stored<T>& a, const Element* b,
                   const Tile& tile, const Gemm& g) {
  using P = Panels<T>;
  constexpr int kCols = P::kCols;
  const int64_t column = tile.down * P::kRows * kCols, k = g.k, steps = P::steps(k);
  const int64_t rows = std::min(tile.down * P::kRows, g.m - tile.i);
  if (k == 0) std::fill_n(sum, tile.across * column, 0.0f);
  for (int64_t begin = 0; begin < k; begin += P::kDepth) {
    const int64_t depth = std::min(P::kDepth, k - begin);
    pack_panels<true>(packed, a, tile.i, rows, begin, depth);
    for (int64_t p = 0; p < tile.across; ++p) {
      const Element* right = b + (p * steps + P::steps(begin)) * kCols;
      const int64_t cols = g.n - tile.j - p * kCols;
      // After the last panel comes the next slice, or the next tile, mostly of the same columns.
      const Element* next = p + 1 < tile.across ? right + steps * kCols
                            : begin + depth < k ? b + P::steps(begin + depth) * kCols
                                                : b;
      const auto multiply = begin == 0 ? P::template multiply<false> : P::template multiply<true>;
      multiply(sum + p * column, packed, right, tile.down, P::steps(depth), cols, next);
    }
  }
}

// D = alpha sum + beta C in one row of a panel.
template <class TD>
void store_row(TD* d, const TD* c, const float* sum, int64_t cols, float alpha, float beta) {
  if (beta == 0.0f) return scale_and_round(d, sum, cols, alpha);
  vector_for(0, cols, [=](int64_t x) {
    d[x] = static_cast<TD>(alpha * sum[x] + beta * static_cast<float>(c[x]));
  });
}

// `sum` is in panels of kRows rows and kCols columns.
template <int kRows, int kCols, class TD>
void store_tile(TD* d, const TD* c, const float* sum, const Tile& tile, const Gemm& g) {
  const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  const int64_t rows = std::min(tile.down * kRows, g.m - tile.i);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < tile.across; ++p) {
      const int64_t cols = std::min<int64_t>(kCols, g.n - tile.j - p * kCols);
      const int64_t at = (tile.i + r) * g.ldd + tile.j + p * kCols;
      const float* row = sum + (p * tile.down * kRows + r) * kCols;
      if (cols == kCols) {  // without a loop
        store_row(d + at, c + at, row, kCols, alpha, beta);
      } else {
        store_row(d + at, c + at, row, cols, alpha, beta);
      }
    }
  }
}

// The operands and D of matrix `index` of the batch.
template <class TD, class T>
struct Matrices {
  TD* d;
  const T *a, *b;
  const Gemm& g;

  Stored<T> left(int64_t index) const { return {a + index * g.stride_a, g.lda, g.transpose_a}; }
  Stored<T> right(int64_t index) const { return {b + index * g.stride_b, g.ldb, g.transpose_b}; }
  TD* out(int64_t index) const { return d + index * g.stride_d; }
  const TD* added(int64_t index) const {
    return g.c == nullptr ? out(index) : static_cast<const TD*>(g.c) + index * g.stride_d;
  }
};

// Packs columns [j, j + cols) of B of `count` matrices from `first` on, slice by slice.
template <class TD, class T>
void pack_right(typename Panels<T>::Element* packed, const Matrices<TD, T>& x, int64_t first,
                int64_t count, int64_t j, int64_t cols) {
  using P = Panels<T>;
  constexpr int kCols = P::kCols;
  const int64_t k = x.g.k, panels = ceil_div(cols, kCols), slices = ceil_div(k, P::kDepth);
  parallel_for(count * panels * slices, row_grain(kCols * std::min(k, P::kDepth)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t piece = begin; piece < end; ++piece) {
                   const int64_t depth = piece % slices * P::kDepth, panel = piece / slices;
                   const int64_t col = panel % panels * kCols;
                   pack_panels<false>(packed + (panel * P::steps(k) + P::steps(depth)) * kCols,
                                      x.right(first + panel / panels), j + col,
                                      std::min<int64_t>(kCols, cols - col), depth,
                                      std::min(P::kDepth, k - depth));
                 }
               });
}

// Columns [j, j + cols) of D of `count` matrices from `first` on, whose part of B is packed in b.
template <class TD, class T>
void multiply_part(const Matrices<TD, T>& x, const typename Panels<T>::Element* b, int64_t first,
                   int64_t count, int64_t j, int64_t cols) {
  using P = Panels<T>;
  constexpr int kRows = P::kRows, kCols = P::kCols;
  const Gemm& g = x.g;
  const int64_t down = ceil_div(g.m, kRows), across = ceil_div(cols, kCols);
  int64_t tile_down = std::min<int64_t>(P::kTileRows / kRows, down);
  int64_t tile_across = std::min(kTileCols / kCols, across);
  const auto shrink = [&](int64_t& extent, int64_t least) {
    const int64_t enough = thread_count() == 1 ? 1 : 4 * thread_count();
    while (extent > least &&
           count * ceil_div(down, tile_down) * ceil_div(across, tile_across) < enough) {
      extent = std::max((extent + 1) / 2, least);
    }
  };
  shrink(tile_down, kFetchingPanels);  // first, since narrow tiles pack A more often
  shrink(tile_across, 2);
  shrink(tile_down, 1);
  shrink(tile_across, 1);
  const int64_t tiles_down = ceil_div(down, tile_down);
  const int64_t each = tiles_down * ceil_div(across, tile_across);
  const int64_t cost = tile_down * kRows * tile_across * kCols * (g.k + 1) / 64;
  parallel_for(count * each, row_grain(cost), [&](int64_t begin, int64_t end) {
    alignas(64) typename P::Element packed[P::kTileRows * P::steps(P::kDepth)];
    alignas(64) float sum[P::kTileRows * kTileCols];
    const typename P::Registers registers;
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t matrix = piece / each, at = piece % each;
      const int64_t top = at % tiles_down * tile_down, start = at / tiles_down * tile_across;
      const Tile tile{top * kRows, j + start * kCols, std::min(tile_down, down - top),
                      std::min(tile_across, across - start)};
      multiply_tile(sum, packed, x.left(first + matrix),
                    b + (matrix * across + start) * kCols * P::steps(g.k), tile, g);
      store_tile<kRows, kCols>(x.out(first + matrix), x.added(first + matrix), sum, tile, g);
    }
  });
}

template <class TD, class T>
void multiply_packed(const Matrices<TD, T>& x, void* scratch) {
  using P = Panels<T>;
  const Gemm& g = x.g;
  auto* packed = static_cast<typename P::Element*>(scratch);
  const Parts parts(g, P::kCols, P::steps(g.k));
  for (int64_t first = 0; first < g.batch; first += parts.matrices) {
    const int64_t count = std::min(parts.matrices, g.batch - first);
    for (int64_t j = 0; j < g.n; j += parts.cols) {
      const int64_t cols = std::min(parts.cols, g.n - j);
      pack_right(packed, x, first, count, j, cols);
      multiply_part(x, packed, first, count, j, cols);
    }
  }
}

// As many rows or columns are a product that takes as long as reading the other operand.
constexpr int64_t kFew = 4;

bool is_narrow(const Gemm& g) {
  return std::min(g.m, g.n) <= kFew;
}

// A product of few rows, or of few columns: then rows and columns change places.
struct Narrow {
  bool rows;
  int64_t few, many, matrices;  // matrices: at a time

  explicit Narrow(const Gemm& g)
      : rows(g.m <= g.n), few(std::min(g.m, g.n)), many(std::max(g.m, g.n)) {
    const int64_t one = std::max<int64_t>(few * g.k, 1);
    matrices = std::clamp<int64_t>(kPacked / one, 1, std::max<int64_t>(g.batch, 1));
  }
  int64_t packed_size(int64_t k) const { return matrices * few * k; }
};

// D[r, line] = alpha sum(r, line) + beta C, or with rows and columns changed.
template <class TD, class Sum>
void store_narrow(TD* d, const TD* c, const Gemm& g, const Narrow& shape, int64_t line,
                  const Sum& sum) {
  const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  for (int64_t r = 0; r < shape.few; ++r) {
    const int64_t at = shape.rows ? r * g.ldd + line : line * g.ldd + r;
    const float before = beta == 0.0f ? 0.0f : beta * static_cast<float>(c[at]);
    d[at] = static_cast<TD>(alpha * sum(r) + before);
  }
}

// Lines [begin, end) of the large operand of one matrix, stored contiguously along k.
template <class TD, class T>
void multiply_lines(TD* d, const TD* c, const float* few, const Stored<T>& x, const Gemm& g,
                    const Narrow& shape, int64_t begin, int64_t end) {
  for (int64_t line = begin; line < end; ++line) {
    const T* from = x.data + line * x.stride;
    store_narrow(d, c, g, shape, line, [&](int64_t r) {
      const float* row = few + r * g.k;
      return lane_sum<float>(g.k, [=](int64_t l) { return row[l] * static_cast<float>(from[l]); });
    });
  }
}

// The same of an operand stored as slices along k.
template <class TD, class T>
void multiply_slices(TD* d, const TD* c, const float* few, const Stored<T>& x, const Gemm& g,
                     const Narrow& shape, int64_t begin, int64_t end) {
  constexpr int64_t kLines = 256;
  for (int64_t first = begin; first < end; first += kLines) {
    const int64_t count = std::min(kLines, end - first);
    alignas(64) float sums[kFew][kLines] = {};
    for (int64_t l = 0; l < g.k; ++l) {
      const T* from = x.data + l * x.stride + first;
      for (int64_t r = 0; r < shape.few; ++r) {
        float* sum = sums[r];
        const float factor = few[r * g.k + l];
        vector_for(0, count, [=](int64_t i) { sum[i] += factor * static_cast<float>(from[i]); });
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      store_narrow(d, c, g, shape, first + i, [&](int64_t r) { return sums[r][i]; });
    }
  }
}

template <class TD, class T>
void multiply_narrow(const Matrices<TD, T>& x, void* scratch) {
  auto* packed = static_cast<float*>(scratch);
  const Gemm& g = x.g;
  const Narrow shape(g);
  const bool along_k = shape.rows ? g.transpose_b : !g.transpose_a;
  for (int64_t first = 0; first < g.batch; first += shape.matrices) {
    const int64_t count = std::min(shape.matrices, g.batch - first);
    parallel_for(count * shape.few, row_grain(g.k), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {  // the few rows or columns, in floats
        const int64_t matrix = first + i / shape.few, r = i % shape.few;
        const Stored<T> few = shape.rows ? x.left(matrix) : x.right(matrix);
        const T* from = shape.rows ? few.at(r, 0) : few.at(0, r);
        const int64_t step = few.transposed == shape.rows ? few.stride : 1;
        for (int64_t l = 0; l < g.k; ++l) packed[i * g.k + l] = static_cast<float>(from[l * step]);
      }
    });
    const int64_t grain = std::min(shape.many, row_grain(shape.few * (g.k + 1) / 16));
    const int64_t pieces = ceil_div(shape.many, std::max<int64_t>(grain, 1));
    parallel_for(count * pieces, 1, [&](int64_t piece, int64_t) {
      const int64_t matrix = piece / pieces, begin = piece % pieces * grain;
      const int64_t end = std::min(begin + grain, shape.many);
      const float* few = packed + matrix * shape.few * g.k;
      const Stored<T> many = shape.rows ? x.right(first + matrix) : x.left(first + matrix);
      const auto run = along_k ? multiply_lines<TD, T> : multiply_slices<TD, T>;
      run(x.out(first + matrix), x.added(first + matrix), few, many, g, shape, begin, end);
    });
  }
}

// Eigen multiplies tiles of D whose sizes depend only on the problem, each on one core.
constexpr int64_t kEigenRows = 64, kEigenCols = 768;

template <class A>
void multiply_with_eigen(const Matrices<A, A>& x) {
  const Gemm& g = x.g;
  const A alpha = static_cast<A>(g.alpha), beta = static_cast<A>(g.beta);
  const int64_t tiles_down = ceil_div(g.m, kEigenRows);
  const int64_t tiles = tiles_down * ceil_div(g.n, kEigenCols);
  const int64_t cost = std::min(g.m, kEigenRows) * std::min(g.n, kEigenCols) * (g.k + 1) / 64;
  parallel_for(g.batch * tiles, row_grain(cost), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t matrix = piece / tiles, tile = piece % tiles;
      const int64_t i = tile % tiles_down * kEigenRows, j = tile / tiles_down * kEigenCols;
      const int64_t rows = std::min(kEigenRows, g.m - i), cols = std::min(kEigenCols, g.n - j);
      const Stored<A> a = x.left(matrix), b = x.right(matrix);
      A* d = x.out(matrix) + i * g.ldd + j;
      const A* c = x.added(matrix) + i * g.ldd + j;
      for (int64_t r = 0; r < rows && beta != A(0); ++r) {
        A* out = d + r * g.ldd;
        const A* added = c + r * g.ldd;
        vector_for(0, cols, [=](int64_t n) { out[n] = beta * added[n]; });
      }
      multiply<A>(d, g.ldd, {a.at(i, 0), a.stride, a.transposed},
                  {b.at(0, j), b.stride, b.transposed}, rows, cols, g.k, alpha, beta != A(0));
    }
  });
}

}  // namespace

int64_t gemm_scratch(const Gemm& g, DType input, Stream) {
  if (input == DType::f64 || (input == DType::f32 && !g.split)) return 0;
  if (is_narrow(g)) return Narrow(g).packed_size(g.k) * static_cast<int64_t>(sizeof(float));
  return input == DType::bf16 ? packed_bytes<Panels<bfloat16>>(g) : packed_bytes<Panels<float>>(g);
}

template <class TD, class T>
void gemm(TD* d, const T* a, const T* b, const Gemm& packed, const GemmResources& resources,
          Stream) {
  Gemm g = packed;
  if (g.lda == 0) g.lda = g.transpose_a ? g.m : g.k;
  if (g.ldb == 0) g.ldb = g.transpose_b ? g.k : g.n;
  if (g.ldd == 0) g.ldd = g.n;
  const Matrices<TD, T> x{d, a, b, g};
  if constexpr (!std::is_same_v<T, bfloat16>) {
    if (std::is_same_v<T, double> || !g.split) return multiply_with_eigen(x);
  }
  if constexpr (!std::is_same_v<T, double>) {
    const auto run = is_narrow(g) ? multiply_narrow<TD, T> : multiply_packed<TD, T>;
    run(x, resources.scratch);
  }
}

template decltype(gemm<float, float>) gemm<float, float>;
template decltype(gemm<bfloat16, bfloat16>) gemm<bfloat16, bfloat16>;
template decltype(gemm<float, bfloat16>) gemm<float, bfloat16>;
template decltype(gemm<double, double>) gemm<double, double>;

}  // namespace quern::kernels::cpu
