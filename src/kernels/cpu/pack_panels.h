// Packs operands of products into panels (panels.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/dtype.h"
#include "kernels/cpu/panels.h"

namespace quern::kernels::cpu {

// n neighbouring elements, as A.
template <class A, int n>
using Some __attribute__((vector_size(n * sizeof(A)))) = Bits<A>;

// Stored elements that make one of A: a Pair is two bfloat16.
template <class A>
inline constexpr int kTogether = std::is_same_v<A, Pair> ? 2 : 1;

template <class A, class T>
A load_one(const T* x) {
  if constexpr (std::is_same_v<A, Pair>) {
    return {x[0], x[1]};
  } else {
    return static_cast<A>(*x);
  }
}

template <class A, int n, class T>
Some<A, n> load_some(const T* x) {
  Some<A, n> value;
  if constexpr (sizeof(A) == kTogether<A> * sizeof(T)) {
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

// to[c * to_stride + r] = element c of row r, which begins at from + r * from_stride, four by four;
// if `rows` is no multiple of four, the last four rows overlap the previous ones. Reads one cache
// line of every row before the next columns; the data written meanwhile stays in the inner cache.
template <class A, class T>
void transpose(A* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows,
               int64_t cols) {
  const int64_t vector_cols = rows < 4 ? 0 : cols / 4 * 4;
  for (int64_t line = 0; line < vector_cols; line += kLine<T> / kTogether<A>) {
    for (int64_t begin = 0; begin < rows; begin += 4) {
      const int64_t r = std::min(begin, rows - 4);
      for (int64_t c = line; c < std::min(line + kLine<T> / kTogether<A>, vector_cols); c += 4) {
        transpose_block(to + c * to_stride + r, to_stride,
                        from + r * from_stride + kTogether<A> * c, from_stride);
      }
    }
  }
  for (int64_t c = vector_cols; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      to[c * to_stride + r] = load_one<A>(from + r * from_stride + kTogether<A> * c);
    }
  }
}

// Vector `out` of a panel of 6 rows; halves[r] holds half a vector of row r.
template <class A, int out, class Half, int... lane>
typename Vector<A>::type six_rows(const Half (&halves)[6], std::integer_sequence<int, lane...>) {
  constexpr int kLanes = sizeof...(lane);
  constexpr auto row = [](int t) { return (out * kLanes + t) % 6; };
  // The place of lane t's element in rows 2 i and 2 i + 1, behind `before` vectors.
  constexpr auto place = [](int t, int before) {
    return (before * 2 + (out * kLanes + t) % 2) * (kLanes / 2) + (out * kLanes + t) / 6;
  };
  typename Vector<A>::type pairs[3];
  for (int i = 0; i < 3; ++i) {
    pairs[i] = __builtin_shufflevector(halves[2 * i], halves[2 * i + 1], lane...);
  }
  const auto four = __builtin_shufflevector(pairs[0], pairs[1],
                                            (row(lane) < 4 ? place(lane, row(lane) / 2) : -1)...);
  return __builtin_shufflevector(four, pairs[2], (row(lane) < 4 ? lane : place(lane, 1))...);
}

// Packs 6 rows, in three vectors at a time.
template <class A, class T>
void pack_six_rows(A* panel, const T* x, int64_t stride, int64_t k) {
  constexpr int kLanes = Vector<A>::kLanes;
  constexpr std::make_integer_sequence<int, kLanes> lanes;
  int64_t i = 0;
  for (; i + kLanes / 2 <= k; i += kLanes / 2, panel += 3 * kLanes) {
    Some<A, kLanes / 2> halves[6];
    for (int r = 0; r < 6; ++r) {
      halves[r] = load_some<A, kLanes / 2>(x + r * stride + kTogether<A> * i);
    }
    store_vector(panel, six_rows<A, 0>(halves, lanes));
    store_vector(panel + kLanes, six_rows<A, 1>(halves, lanes));
    store_vector(panel + 2 * kLanes, six_rows<A, 2>(halves, lanes));
  }
  transpose(panel, 6, x + kTogether<A> * i, stride, 6, k - i);
}

// Packs `lines` rows or columns of an operand, which lie `stride` apart and are contiguous along k,
// into panels that begin `panel_stride` apart.
template <int kWidth, class A, class T>
void pack_lines(A* panels, int64_t panel_stride, const T* x, int64_t stride, int64_t lines,
                int64_t k) {
  for (int64_t first = 0; first < lines; first += kWidth, panels += panel_stride) {
    const int64_t count = std::min<int64_t>(lines - first, kWidth);
    if constexpr (kWidth == 6 && sizeof(A) == sizeof(float)) {
      if (count == kWidth) {
        pack_six_rows(panels, x + first * stride, stride, k);
        continue;
      }
    }
    transpose(panels, kWidth, x + first * stride, stride, count, k);
    if (count == kWidth) continue;
    for (int64_t i = 0; i < k; ++i) {
      std::fill(panels + i * kWidth + count, panels + (i + 1) * kWidth, A{});
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

// Packs pairs of an operand that pack_lines() takes: `steps` of them in a panel, with zeros behind
// the last of k elements.
template <int kWidth>
void pack_pair_lines(Pair* panels, const bfloat16* x, int64_t stride, int64_t lines, int64_t k,
                     int64_t steps) {
  pack_lines<kWidth>(panels, kWidth * steps, x, stride, lines, k / 2);
  for (int64_t i = k / 2; i < steps; ++i) {
    for (int64_t line = 0; line < round_up(lines, kWidth); ++line) {
      Pair* panel = panels + line / kWidth * kWidth * steps;
      const bool last = 2 * i < k && line < lines;  // of an odd number
      panel[i * kWidth + line % kWidth] = last ? Pair{x[line * stride + 2 * i], {}} : Pair{};
    }
  }
}

// pairs[i] = {even[i], odd[i]}
inline void pair_up(Pair* pairs, const bfloat16* even, const bfloat16* odd, int64_t count) {
  constexpr int kMany = kVectorBytes / sizeof(Pair);
  const auto many = [](const bfloat16* x) {
    return __builtin_convertvector(load_some<uint16_t, kMany>(x), Some<uint32_t, kMany>);
  };
  int64_t i = 0;
  for (; i + kMany <= count; i += kMany) {
    store_vector(pairs + i, many(even + i) | many(odd + i) << 16);
  }
  for (; i < count; ++i) pairs[i] = {even[i], odd[i]};
}

// Packs pairs of an operand that pack_slices() takes.
template <int kWidth>
void pack_pair_slices(Pair* panels, const bfloat16* x, int64_t stride, int64_t lines, int64_t k,
                      int64_t steps) {
  // Lines that are paired at once, in whole vectors, and pairs of slices that go into all panels.
  constexpr int64_t kBlock = kWidth % 32 == 0 ? kWidth : 16 * kWidth, kSteps = 32;
  constexpr bfloat16 zeros[kBlock] = {};
  for (int64_t begin = 0; begin < steps; begin += kSteps) {
    const int64_t end = std::min(begin + kSteps, steps);
    for (int64_t first = 0; first < lines; first += kBlock) {
      const int64_t count = std::min(lines - first, kBlock);
      alignas(64) Pair row[kBlock] = {};
      for (int64_t i = begin; i < end; ++i) {
        const auto slice = [&](int64_t l) { return l < k ? x + l * stride + first : zeros; };
        pair_up(row, slice(2 * i), slice(2 * i + 1), count);
        for (int64_t line = 0; line < count; line += kWidth) {
          std::memcpy(panels + (first + line) * steps + i * kWidth, row + line,
                      sizeof(Pair) * kWidth);
        }
      }
    }
  }
}

}  // namespace quern::kernels::cpu
