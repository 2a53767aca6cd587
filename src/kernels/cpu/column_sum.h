// Sums over the rows of a (rows, C) array on all cores, for weight gradients: the rows are cut into
// chunks, each chunk sums into its own row of partial sums, and those are added in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/parallel.h"

namespace quern::kernels::cpu {

struct RowChunks {
  int64_t rows_each, count;

  explicit RowChunks(int64_t rows)
      : rows_each(std::max<int64_t>(64, (rows + 63) / 64)),  // at most 64 chunks
        count((rows + rows_each - 1) / rows_each) {}
};

// Bytes for the partial sums of one (rows, C) reduction, in float or double.
inline int64_t partial_sum_bytes(int64_t rows, int64_t C) {
  return RowChunks(rows).count * C * static_cast<int64_t>(sizeof(double));
}

// Calls body(begin, end, sums) for each chunk of rows; `sums` (C) starts at 0, inside `partial`.
template <class A, class Body>
void for_row_chunks(int64_t rows, int64_t C, A* partial, const Body& body) {
  const RowChunks chunks(rows);
  parallel_for(chunks.count, 1, [&](int64_t chunk, int64_t) {
    A* sums = partial == nullptr ? nullptr : partial + chunk * C;
    if (sums != nullptr) std::fill_n(sums, C, A(0));
    const int64_t begin = chunk * chunks.rows_each;
    body(begin, std::min(begin + chunks.rows_each, rows), sums);
  });
}

// total[c] = sum over chunks of partial[chunk * stride + c], += when `add`.
template <class A>
void fold_chunks(A* total, const A* partial, int64_t rows, int64_t C, int64_t stride, bool add) {
  const int64_t count = RowChunks(rows).count;
  parallel_for(C, row_grain(count), [&](int64_t begin, int64_t end) {
    if (!add) std::fill(total + begin, total + end, A(0));
    for (int64_t chunk = 0; chunk < count; ++chunk) {
      const A* row = partial + chunk * stride;
      vector_for(begin, end, [=](int64_t c) { total[c] += row[c]; });
    }
  });
}

}  // namespace quern::kernels::cpu
