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

#include "base/dtype.h"

namespace quern::kernels::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kPanelRows = 8;  // 16 of 32 registers hold sums
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32, kPanelRows = 6;  // 12 of 16
#else
inline constexpr int kVectorBytes = 16, kPanelRows = 4;
#endif

// Vector<A>::type is a vector register of A, an extension of GCC and Clang.
template <class A>
struct Vector {
  using type __attribute__((vector_size(kVectorBytes))) = A;
  static constexpr int kLanes = kVectorBytes / sizeof(A);
};

template <class A>
inline constexpr int kPanelCols = 2 * Vector<A>::kLanes;

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

template <class A>
using Four __attribute__((vector_size(4 * sizeof(A)))) = A;

template <class A, class T>
Four<A> load_four(const T* x) {
  Four<A> value;
  if constexpr (std::is_same_v<A, T>) {
    std::memcpy(&value, x, sizeof(value));
  } else {  // bfloat16: the upper half of a float
    static_assert(std::is_same_v<A, float> && std::is_same_v<T, bfloat16>);
    Four<uint16_t> bits;
    std::memcpy(&bits, x, sizeof(bits));
    const Four<uint32_t> shifted = __builtin_convertvector(bits, Four<uint32_t>) << 16;
    std::memcpy(&value, &shifted, sizeof(value));
  }
  return value;
}

// to[c * to_stride + r] = from[r * from_stride + c], four by four in registers.
template <class A, class T>
void transpose(A* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
               int64_t cols) {
  const auto copy_lines = [=](int64_t r_begin, int64_t r_end, int64_t c_begin) {
    for (int64_t c = c_begin; c < cols; ++c) {
      for (int64_t r = r_begin; r < r_end; ++r) {
        to[c * to_stride + r] = static_cast<A>(from[r * from_stride + c]);
      }
    }
  };
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      Four<A> x[4], pairs[4];  // pairs[i]: elements of two rows in turn
      for (int i = 0; i < 4; ++i) x[i] = load_four<A>(from + (r + i) * from_stride + c);
      for (int i = 0; i < 4; i += 2) {
        pairs[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 4, 1, 5);
        pairs[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 6, 3, 7);
      }
      const Four<A> columns[4] = {__builtin_shufflevector(pairs[0], pairs[2], 0, 1, 4, 5),
                                  __builtin_shufflevector(pairs[0], pairs[2], 2, 3, 6, 7),
                                  __builtin_shufflevector(pairs[1], pairs[3], 0, 1, 4, 5),
                                  __builtin_shufflevector(pairs[1], pairs[3], 2, 3, 6, 7)};
      for (int j = 0; j < 4; ++j) {
        std::memcpy(to + (c + j) * to_stride + r, &columns[j], sizeof(columns[j]));
      }
    }
    copy_lines(r, r + 4, c);
  }
  copy_lines(r, rows, 0);
}

// Packs `lines` rows or columns of an operand, which lie `stride` apart and are contiguous along k,
// into panels that begin `panel_stride` apart.
template <int kWidth, class A, class T>
void pack_lines(A* panels, int64_t panel_stride, const T* x, int64_t stride, int64_t lines,
                int64_t k) {
  for (int64_t first = 0; first < lines; first += kWidth, panels += panel_stride) {
    const int64_t count = std::min<int64_t>(lines - first, kWidth);
    transpose(panels, kWidth, x + first * stride, stride, count, k);
    if (count == kWidth) continue;
    for (int64_t i = 0; i < k; ++i) {
      std::fill(panels + i * kWidth + count, panels + (i + 1) * kWidth, A(0));
    }
  }
}

// Packs an operand stored as k slices, `stride` apart, of `lines` contiguous elements.
template <int kWidth, class A, class T>
void pack_slices(A* panels, const T* x, int64_t stride, int64_t lines, int64_t k) {
  for (int64_t first = 0; first < lines; first += kWidth) {
    const int64_t count = std::min<int64_t>(lines - first, kWidth);
    for (int64_t i = 0; i < k; ++i, panels += kWidth) {
      const T* from = x + i * stride + first;
      for (int64_t line = 0; line < (count == kWidth ? kWidth : count); ++line) {
        panels[line] = static_cast<A>(from[line]);
      }
      std::fill(panels + count, panels + kWidth, A(0));
    }
  }
}

// One panel of each operand: sum (kPanelRows, panel_cols), += when kAdd.
template <bool kAdd, class A>
void multiply_panel(A* sum, const A* a, const A* b, int64_t k) {
  constexpr int kLanes = Vector<A>::kLanes, kCols = kPanelCols<A>;
  typename Vector<A>::type left[kPanelRows] = {}, right[kPanelRows] = {};
  for (int64_t i = 0; i < k; ++i, a += kPanelRows, b += kCols) {
    const auto b_left = load_vector(b), b_right = load_vector(b + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kPanelRows; ++r) {
      left[r] += a[r] * b_left;
      right[r] += a[r] * b_right;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kPanelRows; ++r, sum += kCols) {
    if constexpr (kAdd) {
      left[r] += load_vector(sum);
      right[r] += load_vector(sum + kLanes);
    }
    store_vector(sum, left[r]);
    store_vector(sum + kLanes, right[r]);
  }
}

// One panel of columns of a product: sum (panels kPanelRows, panel_cols), += when kAdd. The left
// operand's panels begin `a_stride` apart.
template <bool kAdd, class A>
void multiply_panels(A* sum, const A* a, int64_t a_stride, const A* b, int64_t panels, int64_t k) {
  for (int64_t p = 0; p < panels; ++p) {
    multiply_panel<kAdd>(sum + p * kPanelRows * kPanelCols<A>, a + p * a_stride, b, k);
  }
}

}  // namespace quern::kernels::cpu
