// Products of small matrices that stay in the cache, packed in panels so that the inner loop reads
// memory in order (Goto and van de Geijn, 2008). A left operand is cut into panels of kPanelRows
// rows, a right one into panels of panel_cols columns; a panel holds one slice after another along
// the summed dimension, k, and is filled up with zeros. A product is written in panels of columns,
// so it can be the right operand of the next one as it is. Packing is in pack_panels.h.
//
// A panel's element is a float, a double, or a Pair of bfloat16: two neighbours along k, which a
// processor with BF16 products multiplies and adds to a float at once. Then k counts pairs.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

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

struct Pair {
  bfloat16 even, odd;
};

// A as an arithmetic type of the same size.
template <class A>
using Bits = std::conditional_t<std::is_same_v<A, Pair>, uint32_t, A>;

// The type of sums of products of A.
template <class A>
using Sum = std::conditional_t<std::is_same_v<A, Pair>, float, A>;

// Vector<A>::type is a vector register of A, an extension of GCC and Clang.
template <class A>
struct Vector {
  using type __attribute__((vector_size(kVectorBytes))) = Bits<A>;
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

// sum + a b in each lane.
template <class A>
typename Vector<A>::type multiply_add(A a, typename Vector<A>::type b,
                                      typename Vector<A>::type sum) {
  return sum + a * b;
}

#ifdef __AVX512BF16__
// sum + a.odd b.odd + a.even b.even, rounded after each product, the odd one first; subnormal
// operands and results are zero.
inline Vector<float>::type multiply_add(Pair a, Vector<Pair>::type b, Vector<float>::type sum) {
  int bits;
  std::memcpy(&bits, &a, sizeof(bits));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits)),
                          reinterpret_cast<__m512bh>(b));
}
#endif

// One panel of each operand: sum (kPanelRows, panel_cols), += when kAdd, in its first kVectors
// vectors. Meanwhile one line of the cache after another is prefetched, from `next` on in steps of
// `step` elements.
template <bool kAdd, int kVectors, class A>
void multiply_panel(Sum<A>* sum, const A* a, const A* b, int64_t k, const A* next, int64_t step) {
  constexpr int kLanes = Vector<A>::kLanes, kCols = kPanelCols<A>;
  typename Vector<Sum<A>>::type sums[kPanelRows][kVectors] = {};
  typename Vector<A>::type right[kVectors];
  for (int64_t i = 0; i < k; ++i, a += kPanelRows, b += kCols, next += step) {
    __builtin_prefetch(next, 0, 2);  // to be read; into L2
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = load_vector(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(a[r], right[v], sums[r][v]);
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
void multiply_panels(Sum<A>* sum, const A* a, int64_t a_stride, const A* b, int64_t panels,
                     int64_t k, int64_t cols, const A* next = nullptr) {
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
