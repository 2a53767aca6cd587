// Products of small matrices that stay in the cache, packed in panels so that the inner loop reads
// memory in order (Goto and van de Geijn, 2008). A left operand is cut into panels of kPanelRows
// rows, a right one into panels of panel_cols columns; a panel holds one slice after another along
// the summed dimension, k, and is filled up with zeros. A product is written in panels of columns,
// so it can be the right operand of the next one as it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/dtype.h"
#include "base/round_up.h"

namespace quern::kernels::cpu {

// A panel's rows, and the vectors of its columns. Their product is the number of registers that
// hold sums: more than 8, since two multiply-adds a cycle take 4 cycles each (with 8 the loop stays
// at 77 % of its rate with 12). More vectors a row save loads: each slice loads kPanelRows +
// kPanelVectors times.
#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kPanelRows = 6, kPanelVectors = 4;  // 24 of 32 registers
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32, kPanelRows = 6, kPanelVectors = 2;  // 12 of 16
#else
inline constexpr int kVectorBytes = 16, kPanelRows = 4, kPanelVectors = 2;  // 8 of 16
#endif

inline constexpr int kPanelBytes = kPanelVectors * kVectorBytes;  // a row of a panel of columns

// Vector<A>::type is a vector register of A, an extension of GCC and Clang.
template <class A>
struct Vector {
  using type __attribute__((vector_size(kVectorBytes))) = A;
  static constexpr int kLanes = kVectorBytes / sizeof(A);
};

template <class A>
inline constexpr int kPanelCols = kPanelBytes / sizeof(A);

template <class A>
inline constexpr int kLine = 64 / sizeof(A);  // elements of a line of the cache

template <class A>
typename Vector<A>::type load_vector(const A* x) {
  typename Vector<A>::type value;
  std::memcpy(&value, x, sizeof(value));
  return value;
}

template <class A>
void store_vector(A* x, typename Vector<A>::type value) {
  std::memcpy(x, &value, sizeof(value));
}

// n neighbouring elements, as A.
template <class A, int n>
using Some __attribute__((vector_size(n * sizeof(A)))) = A;

template <class A, int n, class T>
Some<A, n> load_some(const T* x) {
  Some<A, n> value;
  if constexpr (std::is_same_v<A, T>) {
    std::memcpy(&value, x, sizeof(value));
  } else {  // bfloat16: the upper half of a float
    static_assert(std::is_same_v<A, float> && std::is_same_v<T, bfloat16>);
    Some<uint16_t, n> bits;
    std::memcpy(&bits, x, sizeof(bits));
    const Some<uint32_t, n> shifted = __builtin_convertvector(bits, Some<uint32_t, n>) << 16;
    std::memcpy(&value, &shifted, sizeof(value));
  }
  return value;
}

// The transpose of 4 rows and 4 columns, in registers.
template <class A, class T>
void transpose_block(A* to, int64_t to_stride, const T* from, int64_t from_stride) {
  using Four = Some<A, 4>;
  Four x[4], pairs[4];  // pairs[i]: elements of two rows in turn
  for (int i = 0; i < 4; ++i) x[i] = load_some<A, 4>(from + i * from_stride);
  for (int i = 0; i < 4; i += 2) {
    pairs[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 4, 1, 5);
    pairs[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 6, 3, 7);
  }
  const Four columns[4] = {__builtin_shufflevector(pairs[0], pairs[2], 0, 1, 4, 5),
                           __builtin_shufflevector(pairs[0], pairs[2], 2, 3, 6, 7),
                           __builtin_shufflevector(pairs[1], pairs[3], 0, 1, 4, 5),
                           __builtin_shufflevector(pairs[1], pairs[3], 2, 3, 6, 7)};
  for (int j = 0; j < 4; ++j) std::memcpy(to + j * to_stride, &columns[j], sizeof(columns[j]));
}

// to[c * to_stride + r] = from[r * from_stride + c], four by four: where `rows` is no multiple of
// four, the last four again. A line of the cache of each row is read before the next columns are,
// and what is written meanwhile stays in the inner cache.
template <class A, class T>
void transpose(A* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
               int64_t cols) {
  const int64_t vector_cols = rows < 4 ? 0 : cols / 4 * 4;
  for (int64_t line = 0; line < vector_cols; line += kLine<T>) {
    for (int64_t begin = 0; begin < rows; begin += 4) {
      const int64_t r = std::min(begin, rows - 4);
      for (int64_t c = line; c < std::min(line + kLine<T>, vector_cols); c += 4) {
        transpose_block(to + c * to_stride + r, to_stride, from + r * from_stride + c, from_stride);
      }
    }
  }
  for (int64_t c = vector_cols; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      to[c * to_stride + r] = static_cast<A>(from[r * from_stride + c]);
    }
  }
}

// Vector `out` of a panel of 6 rows; halves[r] holds half a vector of row r.
template <int out, class Half, int... lane>
Vector<float>::type six_rows(const Half (&halves)[6], std::integer_sequence<int, lane...>) {
  constexpr int kLanes = sizeof...(lane);
  constexpr auto row = [](int t) { return (out * kLanes + t) % 6; };
  // The place of lane t's element in rows 2 i and 2 i + 1, behind `before` vectors.
  constexpr auto place = [](int t, int before) {
    return (before * 2 + (out * kLanes + t) % 2) * (kLanes / 2) + (out * kLanes + t) / 6;
  };
  Vector<float>::type pairs[3];
  for (int i = 0; i < 3; ++i) {
    pairs[i] = __builtin_shufflevector(halves[2 * i], halves[2 * i + 1], lane...);
  }
  const auto four = __builtin_shufflevector(pairs[0], pairs[1],
                                            (row(lane) < 4 ? place(lane, row(lane) / 2) : -1)...);
  return __builtin_shufflevector(four, pairs[2], (row(lane) < 4 ? lane : place(lane, 1))...);
}

// Packs 6 rows, in three vectors at a time.
template <class T>
void pack_six_rows(float* panel, const T* x, int64_t stride, int64_t k) {
  constexpr int kLanes = Vector<float>::kLanes;
  constexpr std::make_integer_sequence<int, kLanes> lanes;
  int64_t i = 0;
  for (; i + kLanes / 2 <= k; i += kLanes / 2, panel += 3 * kLanes) {
    Some<float, kLanes / 2> halves[6];
    for (int r = 0; r < 6; ++r) halves[r] = load_some<float, kLanes / 2>(x + r * stride + i);
    store_vector(panel, six_rows<0>(halves, lanes));
    store_vector(panel + kLanes, six_rows<1>(halves, lanes));
    store_vector(panel + 2 * kLanes, six_rows<2>(halves, lanes));
  }
  transpose(panel, 6, x + i, stride, 6, k - i);
}

// Packs `lines` rows or columns of an operand, which lie `stride` apart and are contiguous along k,
// into panels that begin `panel_stride` apart.
template <int kWidth, class A, class T>
void pack_lines(A* panels, int64_t panel_stride, const T* x, int64_t stride, int64_t lines,
                int64_t k) {
  for (int64_t first = 0; first < lines; first += kWidth, panels += panel_stride) {
    const int64_t count = std::min<int64_t>(lines - first, kWidth);
    if constexpr (kWidth == 6 && std::is_same_v<A, float>) {
      if (count == kWidth) {
        pack_six_rows(panels, x + first * stride, stride, k);
        continue;
      }
    }
    transpose(panels, kWidth, x + first * stride, stride, count, k);
    if (count == kWidth) continue;
    for (int64_t i = 0; i < k; ++i) {
      std::fill(panels + i * kWidth + count, panels + (i + 1) * kWidth, A(0));
    }
  }
}

// Packs an operand stored as k slices, `stride` apart, of `lines` contiguous elements. Some slices
// at a time go into all panels, so that a line of the cache that two panels share is read once.
template <int kWidth, class A, class T>
void pack_slices(A* panels, const T* x, int64_t stride, int64_t lines, int64_t k) {
  constexpr int64_t kSlices = 64;
  for (int64_t begin = 0; begin < k; begin += kSlices) {
    const int64_t end = std::min(begin + kSlices, k);
    for (int64_t first = 0; first < lines; first += kWidth) {
      const int64_t count = std::min<int64_t>(lines - first, kWidth);
      A* panel = panels + first * k + begin * kWidth;
      for (int64_t i = begin; i < end; ++i, panel += kWidth) {
        const T* from = x + i * stride + first;
        if (std::is_same_v<A, T> && count == kWidth) {
          std::memcpy(panel, from, sizeof(A) * kWidth);
          continue;
        }
        for (int64_t line = 0; line < count; ++line) panel[line] = static_cast<A>(from[line]);
        std::fill(panel + count, panel + kWidth, A(0));
      }
    }
  }
}

// One panel of each operand: sum (kPanelRows, panel_cols), += when kAdd, in its first kVectors
// vectors. Meanwhile one line of the cache after another is prefetched, from `next` on in steps of
// `step` elements.
template <bool kAdd, int kVectors, class A>
void multiply_panel(A* sum, const A* a, const A* b, int64_t k, const A* next, int64_t step) {
  constexpr int kLanes = Vector<A>::kLanes, kCols = kPanelCols<A>;
  typename Vector<A>::type sums[kPanelRows][kVectors] = {}, right[kVectors];
  for (int64_t i = 0; i < k; ++i, a += kPanelRows, b += kCols, next += step) {
    __builtin_prefetch(next, 0, 2);  // to be read; into L2
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = load_vector(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += a[r] * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kPanelRows; ++r, sum += kCols) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kAdd) sums[r][v] += load_vector(sum + v * kLanes);
      store_vector(sum + v * kLanes, sums[r][v]);
    }
  }
}

// So many panels of rows prefetch a slice of a panel of columns, a line for each step along k.
inline constexpr int64_t kFetchingPanels = ceil_div(kPanelBytes, kLine<char>);

// One panel of columns of a product: sum (panels kPanelRows, panel_cols), += when kAdd, in its
// first `cols` columns, rounded up to vectors. The left operand's panels begin `a_stride` apart.
// The first ones prefetch `next`, the panel of columns that is multiplied after this one.
template <bool kAdd, int kVectors = kPanelVectors, class A>
void multiply_panels(A* sum, const A* a, int64_t a_stride, const A* b, int64_t panels, int64_t k,
                     int64_t cols, const A* next = nullptr) {
  if constexpr (kVectors > 1) {
    if (cols <= (kVectors - 1) * Vector<A>::kLanes) {
      return multiply_panels<kAdd, kVectors - 1>(sum, a, a_stride, b, panels, k, cols, next);
    }
  }
  for (int64_t p = 0; p < panels; ++p) {
    const bool fetch = next != nullptr && p < kFetchingPanels;
    multiply_panel<kAdd, kVectors>(sum + p * kPanelRows * kPanelCols<A>, a + p * a_stride, b, k,
                                   fetch ? next + p * k * kLine<A> : b, fetch ? kLine<A> : 0);
  }
}

}  // namespace quern::kernels::cpu
