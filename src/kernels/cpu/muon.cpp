// Muon's passes. A piece is one part of one matrix, so the order of a sum depends only on the
// matrix.
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/with_weights.h"

namespace quern::kernels::cpu {
namespace {

// Calls body(row, i, part, begin, end) for every part of every row i, on all cores.
template <class Row, class Body>
void for_parts(const MuonTable<Row>& table, const Body& body) {
  const auto length_of = [](int64_t numel) { return (numel + kMuonParts - 1) / kMuonParts; };
  const int64_t grain = row_grain(length_of(table.most));
  parallel_for(table.count * kMuonParts, grain, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t i = piece / kMuonParts, part = piece % kMuonParts;
      const Row& row = table.rows[i];
      const int64_t length = length_of(row.numel), begin = std::min(part * length, row.numel);
      body(row, i, part, begin, std::min(begin + length, row.numel));
    }
  });
}

}  // namespace

void muon_momentum(bfloat16* x, float* momentum, const float* grad, const MuonMatrices& matrices,
                   float mu, bool nesterov, const StepState* state, Stream) {
  if (state->finite == 0) return;
  const float clip = state->clip;
  for_parts(matrices, [=](const MuonMatrix& one, auto, auto, int64_t begin, int64_t end) {
    const float* g = grad + one.grad;
    float* m = momentum + one.momentum;
    bfloat16* out = x + one.x;
    vector_for(begin, end, [=](int64_t i) {
      const float gradient = g[i] * clip;
      const float next = m[i] + (1.0f - mu) * (gradient - m[i]);
      m[i] = next;
      out[i] = static_cast<bfloat16>(nesterov ? gradient + mu * (next - gradient) : next);
    });
  });
}

void muon_squares(float* squares, const bfloat16* x, const MuonMatrices& matrices, Stream) {
  for_parts(matrices,
            [=](const MuonMatrix& one, int64_t i, int64_t part, int64_t begin, int64_t end) {
              const bfloat16* const in = x + one.x + begin;
              const double sum = lane_sum<double>(end - begin, [=](int64_t k) {
                const double value = static_cast<float>(in[k]);
                return value * value;
              });
              squares[i * kMuonParts + part] = static_cast<float>(sum);
            });
}

void muon_normalize(bfloat16* x, const float* squares, const MuonMatrices& matrices, float eps,
                    Stream) {
  for_parts(matrices, [=](const MuonMatrix& one, int64_t i, auto, int64_t begin, int64_t end) {
    const float* parts = squares + i * kMuonParts;
    const double sum = lane_sum<double>(kMuonParts, [=](int64_t k) { return parts[k]; });
    const auto norm = static_cast<float>(static_cast<bfloat16>(static_cast<float>(std::sqrt(sum))));
    const float divisor = std::max(norm, eps);
    bfloat16* out = x + one.x;
    vector_for(begin, end, [=](int64_t k) {
      out[k] = static_cast<bfloat16>(static_cast<float>(out[k]) / divisor);
    });
  });
}

void muon_update(const WeightArrays& weights, const bfloat16* x, const MuonMatrices& matrices,
                 const StepState* state, Stream) {
  if (state->finite == 0) return;
  for_parts(matrices, [&](const MuonMatrix& one, auto, auto, int64_t begin, int64_t end) {
    const float lr = state->lr * one.lr_scale;
    const float keep = 1.0f - lr * one.decay, rate = lr * one.adjust;
    const bfloat16* change = x + one.x;
    with_weights(weights, one.weight, [&](auto here) {
      vector_for(begin, end, [=](int64_t i) {
        here.set(i, std::fma(keep, here.get(i), -(rate * static_cast<float>(change[i]))));
      });
    });
  });
}

void muon_copy(bfloat16* to, const bfloat16* from, const MuonCopies& copies, Stream) {
  for_parts(copies, [=](const MuonCopy& one, auto, auto, int64_t begin, int64_t end) {
    std::copy(from + one.from + begin, from + one.from + end, to + one.to + begin);
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
