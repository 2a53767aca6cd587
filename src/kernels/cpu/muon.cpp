// Muon's passes. A piece is one part of one matrix, so the order of a sum depends only on the
// matrix.
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

// Calls body(i, part, begin, end) for every part of `count` runs of numel_of(i) elements, on all
// cores. `most`: elements of the longest run.
template <class Numel, class Body>
void for_parts(int64_t count, int64_t most, const Numel& numel_of, const Body& body) {
  const auto length_of = [](int64_t numel) { return (numel + kMuonParts - 1) / kMuonParts; };
  parallel_for(count * kMuonParts, row_grain(length_of(most)), [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t i = piece / kMuonParts, part = piece % kMuonParts, numel = numel_of(i);
      const int64_t begin = std::min(part * length_of(numel), numel);
      body(i, part, begin, std::min(begin + length_of(numel), numel));
    }
  });
}

// Calls body(matrix, begin, end) for every part of every matrix.
template <class Body>
void for_parts(const MuonGroup& group, const Body& body) {
  for_parts(
      group.count, group.most, [&](int64_t i) { return group.matrices[i].numel; },
      [&](int64_t i, int64_t, int64_t begin, int64_t end) { body(group.matrices[i], begin, end); });
}

}  // namespace

void muon_momentum(bfloat16* x, float* momentum, const float* grad, const MuonGroup& group,
                   float mu, bool nesterov, const StepState* state, Stream) {
  if (state->finite == 0) return;
  const float clip = state->clip;
  for_parts(group, [=](const MuonMatrix& matrix, int64_t begin, int64_t end) {
    const float* g = grad + matrix.grad;
    float* m = momentum + matrix.momentum;
    bfloat16* out = x + matrix.x;
    vector_for(begin, end, [=](int64_t i) {
      const float gradient = g[i] * clip;
      const float next = m[i] + (1.0f - mu) * (gradient - m[i]);
      m[i] = next;
      out[i] = static_cast<bfloat16>(nesterov ? gradient + mu * (next - gradient) : next);
    });
  });
}

void muon_squares(float* squares, const bfloat16* x, const MuonGroup& group, Stream) {
  for_parts(
      group.count, group.most, [&](int64_t i) { return group.matrices[i].numel; },
      [=, &group](int64_t matrix, int64_t part, int64_t begin, int64_t end) {
        const bfloat16* const in = x + group.matrices[matrix].x + begin;
        const double sum = lane_sum<double>(end - begin, [=](int64_t i) {
          const double value = static_cast<float>(in[i]);
          return value * value;
        });
        squares[matrix * kMuonParts + part] = static_cast<float>(sum);
      });
}

void muon_normalize(bfloat16* x, const float* squares, const MuonGroup& group, float eps, Stream) {
  for_parts(group, [=, &group](const MuonMatrix& matrix, int64_t begin, int64_t end) {
    const float* parts = squares + (&matrix - group.matrices) * kMuonParts;
    const double sum = lane_sum<double>(kMuonParts, [=](int64_t i) { return parts[i]; });
    const auto norm = static_cast<float>(static_cast<bfloat16>(static_cast<float>(std::sqrt(sum))));
    const float divisor = std::max(norm, eps);
    bfloat16* out = x + matrix.x;
    vector_for(begin, end, [=](int64_t i) {
      out[i] = static_cast<bfloat16>(static_cast<float>(out[i]) / divisor);
    });
  });
}

void muon_update(float* param, bfloat16* copy, const bfloat16* x, const MuonGroup& group,
                 const StepState* state, Stream) {
  if (state->finite == 0) return;
  for_parts(group, [=](const MuonMatrix& one, int64_t begin, int64_t end) {
    const float lr = state->lr * one.lr_scale;
    const float keep = 1.0f - lr * one.decay, rate = lr * one.adjust;
    float* p = param + one.param;
    const bfloat16* change = x + one.x;
    vector_for(begin, end,
               [=](int64_t i) { p[i] = keep * p[i] - rate * static_cast<float>(change[i]); });
    if (copy == nullptr) return;
    bfloat16* rounded = copy + one.param;
    vector_for(begin, end, [=](int64_t i) { rounded[i] = static_cast<bfloat16>(p[i]); });
  });
}

void muon_copy(bfloat16* to, const bfloat16* from, const MuonCopies& copies, Stream) {
  for_parts(
      copies.count, copies.most, [&](int64_t i) { return copies.copies[i].count; },
      [=, &copies](int64_t i, int64_t, int64_t begin, int64_t end) {
        const MuonCopy& copy = copies.copies[i];
        std::copy(from + copy.from + begin, from + copy.from + end, to + copy.to + begin);
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
