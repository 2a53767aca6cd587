// The CPU kernels' loops over all cores and over vector lanes. The problem fixes the pieces, never
// the number of threads, so a result has the same bits with any number of threads. (Vectorising
// math.h's selects needs -fno-trapping-math, which the kernels' target sets; it changes no result.)
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/threads.h"

namespace quern::kernels {

// Calls body(begin, end) for consecutive pieces of [0, n), each `grain` long but the last. Pieces
// run in any order, at the same time: they must write to different places and must not throw.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
  const int64_t pieces = (n + grain - 1) / grain;
  if (pieces <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  struct Loop {
    int64_t n, grain;
    const Body& body;
  };
  const Loop loop{n, grain, body};
  cpu::run_pieces(
      pieces,
      [](const void* context, int64_t piece) {
        const auto& [n, grain, body] = *static_cast<const Loop*>(context);
        body(piece * grain, std::min((piece + 1) * grain, n));
      },
      &loop);
}

// Calls body(i) for i in [begin, end) in vector instructions. No call may read what another call
// writes: the output may be the input itself, but not shifted. Everything that body calls is
// inlined: one call left makes the loop scalar.
template <class Body>
[[gnu::flatten]] void vector_for(int64_t begin, int64_t end, const Body& body) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) body(i);
}

// Elements per piece: enough work for a thread (some 10 microseconds).
inline constexpr int64_t kGrain = 16384;

// Rows per piece, for rows of `row_cost` elements.
inline int64_t row_grain(int64_t row_cost) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_cost));
}

// Calls body(row) for every row in [0, rows), on all cores; a row has `row_cost` elements.
template <class Body>
void parallel_rows(int64_t rows, int64_t row_cost, const Body& body) {
  parallel_for(rows, row_grain(row_cost), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// Calls body(i) for every i in [0, n), on all cores and lanes.
template <class Body>
void parallel_elements(int64_t n, const Body& body) {
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { vector_for(begin, end, body); });
}

}  // namespace quern::kernels
