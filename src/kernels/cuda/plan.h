// How CUDA kernels divide their work, as far as their scratch memory depends on it. Plain C++ in
// every build, as are the *_plan.cpp files: memory is also predicted for GPUs that are absent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/device_traits.h"
#include "kernels/reduce.h"

namespace quern::kernels::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr int kWarpgroupRows = 64;  // M of wgmma

template <class A, class B>
QUERN_HD constexpr int64_t ceil_div(A a, B b) {
  return (static_cast<int64_t>(a) + static_cast<int64_t>(b) - 1) / static_cast<int64_t>(b);
}

// Slices of rows of a column sum (column_sum.cuh), each summed into a row of the scratch memory.
inline int64_t column_sum_slices(int64_t rows) {
  return std::clamp<int64_t>(ceil_div(rows, 128), 1, 128);
}
inline int64_t column_sum_scratch(int64_t rows, int64_t C) {  // bytes
  return column_sum_slices(rows) * C * static_cast<int64_t>(sizeof(float));
}

// Slices of the rows of bias_gelu.cu: enough blocks to fill any GPU, of 64 rows or more, and few
// enough for fold_rows.
inline int64_t bias_gelu_slices(int64_t rows, int64_t F) {
  const int64_t most = std::min<int64_t>(ceil_div(rows, 64), 256);
  return std::clamp<int64_t>(2048 / std::max<int64_t>(ceil_div(F, 256), 1), 1,
                             std::max<int64_t>(most, 1));
}

// How the middle extent of a sum is cut: `count` parts of `length`, the last one shorter.
struct SumParts {
  int64_t count, length;
};
SumParts cut_sum(const ReduceShape& s);

inline constexpr int64_t kNormMultiprocessors = 132;  // of an H100, which norms' backward fills
inline constexpr int64_t kNormBackwardBlocks = 3 * kNormMultiprocessors;
inline constexpr int kEmbeddingPiece = kWarpSize;  // tokens of an id that one warp sums
inline constexpr int kProductRows = 128, kProductColumns = 192;  // a tile of D in product_tiles.cuh
inline constexpr int kProductCluster = 2;                  // blocks with tiles below each other
inline constexpr int kSortDigits = 256, kSortTile = 4096;  // tokens a block ranks

}  // namespace quern::kernels::cuda
