// The panels (panels.h) of gemm.cpp's products, chosen by the operands' type and the level's
// multiply instructions. QUERN_CPU_TILES stands for the level amx, whose registers a process may
// use only after level.cpp has asked for them.
#pragma once

// Pairs are faster than floats, but not on Intel's processors with tiles (level.cpp).
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#define QUERN_CPU_PAIRS
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "base/dtype.h"
#include "base/round_up.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/pack_panels.h"
#include "kernels/cpu/panels.h"

namespace quern::kernels::cpu {

// Panels of A that are multiplied in vector registers.
template <class A>
struct VectorPanels {
  using Element = A;
  static constexpr int kRows = kPanelRows, kCols = kPanelCols<A>;
  static constexpr int kTileRows = 96;  // multiplied at a time

  // Held while products are multiplied. (The constructor avoids a warning: unused variable.)
  struct Registers {
    Registers() {}
  };

  template <bool kAdd>
  static void multiply(float* sum, const A* a, const A* b, int64_t panels, int64_t steps,
                       int64_t cols, const A* next) {
    multiply_panels<kAdd>(sum, a, kRows * steps, b, panels, steps, cols, next);
  }
};

// Floats, also of operands in bfloat16.
template <class T>
struct FloatPanels : VectorPanels<float> {
  // Elements along k that are multiplied at a time: a panel of each operand stays in the inner
  // caches.
  static constexpr int64_t kDepth = 512;
  static constexpr int64_t steps(int64_t k) { return k; }  // of the inner loop

  // Packs `lines` rows of the left operand or columns of the right one, which are contiguous along
  // k (`along_k`) or stored as slices of k.
  template <bool kLeft>
  static void pack(float* panels, const T* x, int64_t stride, bool along_k, int64_t lines,
                   int64_t k) {
    constexpr int kWidth = kLeft ? kRows : kCols;
    if (along_k) return pack_lines<kWidth>(panels, kWidth * k, x, stride, lines, k);
    pack_slices<kWidth>(panels, x, stride, lines, k);
  }
};

#ifdef QUERN_CPU_PAIRS
// Pairs of bfloat16, with the same members.
struct PairPanels : VectorPanels<Pair> {
  static constexpr int64_t kDepth = 1024;
  static constexpr int64_t steps(int64_t k) { return ceil_div(k, 2); }

  template <bool kLeft>
  static void pack(Pair* panels, const bfloat16* x, int64_t stride, bool along_k, int64_t lines,
                   int64_t k) {
    constexpr int kWidth = kLeft ? kRows : kCols;
    const auto run = along_k ? pack_pair_lines<kWidth> : pack_pair_slices<kWidth>;
    run(panels, x, stride, lines, k, steps(k));
  }
};
#endif

#ifdef QUERN_CPU_TILES
// Pairs of bfloat16 for tile registers, which multiply 16 rows of 16 pairs by 16 pairs of 16
// columns; the same members again. A panel of rows holds one tile after another, the upper and the
// lower rows in turn.
struct TilePanels {
  using Element = Pair;
  static constexpr int kTile = 16;  // rows, columns and pairs
  static constexpr int kRows = 2 * kTile, kCols = 2 * kTile, kTileRows = 192;
  static constexpr int64_t kDepth = 512;
  static constexpr int64_t steps(int64_t k) { return round_up(ceil_div(k, 2), kTile); }

  // The shapes of the tiles, for this thread. While they are set, a switch of threads saves them.
  struct Registers {
    Registers() {
      struct {
        uint8_t palette = 1, start = 0, unused[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
      } shapes;
      for (int tile = 0; tile < 8; ++tile) {
        shapes.row_bytes[tile] = kTile * sizeof(Pair);
        shapes.rows[tile] = kTile;
      }
      asm volatile("" ::"r"(&shapes) : "memory");  // the intrinsic declares only 8 bytes as read
      _tile_loadconfig(&shapes);
    }
    ~Registers() { _tile_release(); }
    Registers(const Registers&) = delete;
    Registers& operator=(const Registers&) = delete;
  };

  template <bool kLeft>
  static void pack(Pair* panels, const bfloat16* x, int64_t stride, bool along_k, int64_t lines,
                   int64_t k) {
    if constexpr (kLeft) {
      return along_k ? pack_rows(panels, x, stride, lines, k)
                     : pack_turned_rows(panels, x, stride, lines, k);
    }
    const auto run = along_k ? pack_pair_lines<kCols> : pack_pair_slices<kCols>;
    run(panels, x, stride, lines, k, steps(k));
  }

  template <bool kAdd>
  static void multiply(float* sum, const Pair* a, const Pair* b, int64_t panels, int64_t steps,
                       int64_t /*cols*/, const Pair* /*next*/) {
    for (int64_t p = 0; p < panels; ++p, sum += kRows * kCols, a += kRows * steps) {
      multiply_panel<kAdd>(sum, a, b, steps);
    }
  }

 private:
  // Rows that are contiguous along k.
  static void pack_rows(Pair* panels, const bfloat16* x, int64_t stride, int64_t lines, int64_t k) {
    for (int64_t line = 0; line < round_up(lines, kRows); ++line) {
      Pair* row = panels + line / kRows * kRows * steps(k) + line % kRows * kTile;
      const bfloat16* from = line < lines ? x + line * stride : x;
      for (int64_t i = 0; i < k; i += 2 * kTile, row += kRows * kTile) {
        const int64_t count = line < lines ? std::min<int64_t>(k - i, 2 * kTile) : 0;
        if (count < 2 * kTile) std::fill_n(row, kTile, Pair{});
        std::memcpy(row, from + i, sizeof(bfloat16) * count);
      }
    }
  }

  // Rows that are stored as slices of k.
  static void pack_turned_rows(Pair* panels, const bfloat16* x, int64_t stride, int64_t lines,
                               int64_t k) {
    for (int64_t first = 0; first < lines; first += kRows, panels += kRows * steps(k)) {
      const int64_t count = std::min<int64_t>(lines - first, kRows);
      for (int64_t i = 0; i < k; i += 2 * kTile) {
        alignas(64) uint32_t pairs[kTile * kRows], turned[kRows * kTile];
        pack_pair_slices<kRows>(reinterpret_cast<Pair*>(pairs), x + i * stride + first, stride,
                                count, std::min<int64_t>(k - i, 2 * kTile), kTile);
        transpose(turned, kTile, pairs, kRows, kTile, kRows);
        std::memcpy(panels + i / 2 * kRows, turned, sizeof(turned));
      }
    }
  }

  // Tiles 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b.
  template <bool kAdd>
  static void multiply_panel(float* sum, const Pair* a, const Pair* b, int64_t steps) {
    constexpr long kRow = kCols * sizeof(float), kRowOfA = kTile * sizeof(Pair);  // bytes
    float* const lower = sum + kTile * kCols;
    asm volatile("" ::: "memory");  // the intrinsics do not declare the memory that tiles load
    if constexpr (kAdd) {
      _tile_loadd(0, sum, kRow);
      _tile_loadd(1, sum + kTile, kRow);
      _tile_loadd(2, lower, kRow);
      _tile_loadd(3, lower + kTile, kRow);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; i += kTile, a += kRows * kTile, b += kCols * kTile) {
      _tile_loadd(4, a, kRowOfA);
      _tile_loadd(6, b, kRow);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kTile, kRow);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTile * kTile, kRowOfA);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sum, kRow);
    _tile_stored(1, sum + kTile, kRow);
    _tile_stored(2, lower, kRow);
    _tile_stored(3, lower + kTile, kRow);
  }
};

template <class T>
using Panels = std::conditional_t<std::is_same_v<T, bfloat16>, TilePanels, FloatPanels<T>>;
#elif defined(QUERN_CPU_PAIRS)
template <class T>
using Panels = std::conditional_t<std::is_same_v<T, bfloat16>, PairPanels, FloatPanels<T>>;
#else
template <class T>
using Panels = FloatPanels<T>;
#endif

// to = factor * from. An instruction that rounds to bfloat16 makes subnormal values zero.
template <class T>
void scale_and_round(T* to, const float* from, int64_t count, float factor) {
#if defined(QUERN_CPU_PAIRS) || defined(QUERN_CPU_TILES)
  if constexpr (std::is_same_v<T, bfloat16>) {
    for (; count >= 32; count -= 32, to += 32, from += 32) {
      const __m512bh rounded =
          _mm512_cvtne2ps_pbh(factor * load_vector(from + 16), factor * load_vector(from));
      std::memcpy(to, &rounded, sizeof(rounded));
    }
  }
#endif
  vector_for(0, count, [=](int64_t i) { to[i] = static_cast<T>(factor * from[i]); });
}

#undef QUERN_CPU_PAIRS

}  // namespace quern::kernels::cpu
