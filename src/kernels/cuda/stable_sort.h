// Sorts token positions by token id, equal ids in the order of their positions.
#pragma once

#include <cstdint>

#include "base/stream.h"

namespace quern::kernels::cuda {

struct SortedIds {
  const int32_t* keys;   // (n) ids, ascending; V for each id outside [0, V)
  const int32_t* order;  // (n) the positions they came from
};

// Bytes: two arrays of keys, two of positions, and counts.
int64_t stable_sort_scratch(int64_t n);

// 1 <= n < 2^31, V < 2^31 - 1, else throws. Everything returned lies in `scratch` (4-byte aligned).
SortedIds stable_sort_ids(const int32_t* ids, int64_t n, int64_t V, void* scratch, Stream stream);

}  // namespace quern::kernels::cuda
