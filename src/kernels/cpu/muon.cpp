// Muon's elementwise passes. A piece is one part of one matrix, so the order of a sum depends only
// on the matrix.
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

// Calls body(matrix, part, begin, end) for every part of every matrix, on all cores.
template <class Body>
void for_parts(const MuonGroup& group, const Body& body) {
  const int64_t length = (group.numel + kMuonParts - 1) / kMuonParts;
  parallel_for(group.count * kMuonParts, row_grain(length), [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t matrix = piece / kMuonParts, part = piece % kMuonParts;
      const int64_t begin = std::min(part * length, group.numel);
      body(matrix, part, begin, std::min(begin + length, group.numel));
    }
  });
}

}  // namespace

void muon_momentum(bfloat16* x, float* squares, float* momentum, const float* grad,
                   const MuonGroup& group, float mu, bool nesterov, const StepState* state,
                   Stream) {
  if (state->finite == 0) return;
  const float clip = state->clip;
  for_parts(group, [=](int64_t matrix, int64_t part, int64_t begin, int64_t end) {
    const float* g = grad + group.matrices[matrix].begin;
    float* m = momentum + matrix * group.stride;
    bfloat16* out = x + matrix * group.stride;
    vector_for(begin, end, [=](int64_t i) {
      const float gradient = g[i] * clip;
      const float next = m[i] + (1.0f - mu) * (gradient - m[i]);
      m[i] = next;
      out[i] = static_cast<bfloat16>(nesterov ? gradient + mu * (next - gradient) : next);
    });
    const double sum = lane_sum<double>(end - begin, [=](int64_t i) {
      const double value = static_cast<float>(out[begin + i]);
      return value * value;
    });
    squares[matrix * kMuonParts + part] = static_cast<float>(sum);
  });
}

void muon_normalize(bfloat16* x, const float* squares, const MuonGroup& group, float eps, Stream) {
  for_parts(group, [=](int64_t matrix, int64_t, int64_t begin, int64_t end) {
    const float* parts = squares + matrix * kMuonParts;
    const double sum = lane_sum<double>(kMuonParts, [=](int64_t i) { return parts[i]; });
    const auto norm = static_cast<float>(static_cast<bfloat16>(static_cast<float>(std::sqrt(sum))));
    const float divisor = std::max(norm, eps);
    bfloat16* out = x + matrix * group.stride;
    vector_for(begin, end, [=](int64_t i) {
      out[i] = static_cast<bfloat16>(static_cast<float>(out[i]) / divisor);
    });
  });
}

void muon_update(float* param, bfloat16* copy, const bfloat16* x, const MuonGroup& group,
                 const StepState* state, Stream) {
  if (state->finite == 0) return;
  for_parts(group, [=](int64_t matrix, int64_t, int64_t begin, int64_t end) {
    const MuonMatrix& one = group.matrices[matrix];
    const float lr = state->lr * one.lr_scale;
    const float keep = 1.0f - lr * one.decay, rate = lr * one.adjust;
    float* p = param + one.begin;
    const bfloat16* change = x + matrix * group.stride;
    vector_for(begin, end,
               [=](int64_t i) { p[i] = keep * p[i] - rate * static_cast<float>(change[i]); });
    if (copy == nullptr) return;
    bfloat16* rounded = copy + one.begin;
    vector_for(begin, end, [=](int64_t i) { rounded[i] = static_cast<bfloat16>(p[i]); });
  });
}

void muon_mirror(bfloat16* x, int64_t n, int64_t count, int64_t stride, Stream) {
  const int64_t half = n / 2;
  parallel_rows(count * half, half, [=](int64_t row) {
    bfloat16* const matrix = x + row / half * stride;
    const int64_t i = row % half;
    for (int64_t j = half; j < n; ++j) matrix[i * n + j] = matrix[j * n + i];
  });
}

}  // namespace quern::kernels::cpu
