#include "kernels/bias_gelu.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/stable_sort.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/optimizer.h"
#include "kernels/rms_norm.h"
#include "kernels/weighted_sum.h"

namespace quern::kernels::cuda {

namespace {

constexpr int64_t kFloat = sizeof(float);

}  // namespace

// A function of the shape alone: enough blocks for any GPU, in parts that are long enough to pay.
SumParts cut_sum(const ReduceShape& s) {
  constexpr int64_t kBlocks = 2048, kRowPart = 2048, kColumnPart = 64, kMultiple = 8;
  const SumParts whole{1, s.n};
  const bool rows = s.inner == 1;
  const int64_t blocks = rows ? s.outer : ceil_div(s.outer * s.inner, kWarpSize);
  if (blocks == 0) return whole;
  const int64_t most = kBlocks / blocks, worth = s.n / (rows ? kRowPart : kColumnPart);
  const int64_t count = std::min(most, worth);
  if (count < 2) return whole;
  const int64_t length = ceil_div(ceil_div(s.n, count), kMultiple) * kMultiple;
  return {ceil_div(s.n, length), length};
}

int64_t sum_forward_scratch(const ReduceShape& s, Stream) {
  const int64_t parts = cut_sum(s).count;
  return parts == 1 ? 0 : s.outer * parts * s.inner * kFloat;
}

// Partial gradients of w, and behind them those of b. Column sums use the memory in turn.
int64_t layer_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  const int64_t partials = std::clamp<int64_t>(rows, 1, kNormBackwardBlocks);
  return std::max(column_sum_scratch(rows, C), 2 * partials * C * kFloat);
}

int64_t rms_norm_backward_scratch(int64_t rows, int64_t C, Stream) {
  const int64_t partials = std::clamp<int64_t>(rows, 1, kNormBackwardBlocks);
  return std::max(column_sum_scratch(rows, C), partials * C * kFloat);
}

int64_t bias_gelu_backward_scratch(int64_t rows, int64_t F, Stream) {
  return bias_gelu_slices(rows, F) * F * kFloat;
}

int64_t weighted_sum_backward_scratch(int64_t rows, int64_t C, Stream) {
  return column_sum_scratch(rows, C);
}

int64_t stable_sort_scratch(int64_t n) {
  return (4 * n + kSortDigits * ceil_div(n, kSortTile)) * static_cast<int64_t>(sizeof(int32_t));
}

int64_t embedding_backward_scratch(int64_t n, int64_t, int64_t C, Stream) {
  return ceil_div(n, kEmbeddingPiece) * C * kFloat + stable_sort_scratch(n);
}

int64_t norm_partial_bytes(Stream) {
  return kFloat;
}

}  // namespace quern::kernels::cuda
