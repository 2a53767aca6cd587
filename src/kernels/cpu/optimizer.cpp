// The end of a step: the gradient's norm and the clip factor, AdamW in one pass over every range,
// and the step's counters.
#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/common/parallel.h"
#include "kernels/cpu/lanes.h"

namespace quern::kernels::cpu {
namespace {

// Constants of one update of one range.
struct AdamWStep {
  float beta1, beta2, eps;
  float inverse_bias1, inverse_bias2;  // 1 / (1 - beta^t)
  float clip, lr, decay;
};

// kCopy: whether a bfloat16 copy is written, so that the loop has no branch.
template <bool kCopy>
void update_range(float* param, float* m, float* v, bfloat16* copy, const float* grad,
                  int64_t count, const AdamWStep& step) {
  parallel_elements(count, [=](int64_t i) {
    const float g = grad[i] * step.clip;
    const float first = step.beta1 * m[i] + (1.0f - step.beta1) * g;
    const float second = step.beta2 * v[i] + (1.0f - step.beta2) * (g * g);
    const float root = std::sqrt(second * step.inverse_bias2) + step.eps;
    const float p = param[i];
    const float next = p - step.lr * (step.decay * p + first * step.inverse_bias1 / root);
    m[i] = first;
    v[i] = second;
    param[i] = next;
    if constexpr (kCopy) copy[i] = static_cast<bfloat16>(next);
  });
}

}  // namespace

void store_learning_rate(StepState* state, float lr, Stream) {
  state->lr = lr;
}

int64_t norm_partial_bytes(Stream) {
  return sizeof(double);
}

void sum_squares(void* partial, const float* grad, int64_t n, Stream) {
  static_assert(kGrain % kNormChunk == 0);
  auto* const sums = static_cast<double*>(partial);
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; chunk += kNormChunk) {
      const int64_t count = std::min(kNormChunk, end - chunk);
      sums[chunk / kNormChunk] = lane_sum<double>(count, [=](int64_t i) {
        const double g = grad[chunk + i];
        return g * g;
      });
    }
  });
}

void finish_norm(StepState* state, void* partial, int64_t count, float grad_scale, float max_norm,
                 const float* loss, Stream) {
  const auto* const sums = static_cast<const double*>(partial);
  const double squares = lane_sum<double>(count, [=](int64_t i) { return sums[i]; });
  const float norm = static_cast<float>(std::sqrt(squares) * grad_scale);
  const float shrink = max_norm > 0.0f ? std::min(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
  state->norm = norm;
  state->clip = grad_scale * shrink;
  const bool halted = state->halt != 0 && state->skipped > state->skipped_before;
  const bool finite = std::isfinite(norm) && (loss == nullptr || std::isfinite(*loss));
  state->finite = finite && !halted ? 1 : 0;
}

void adamw(float* param, float* m, float* v, bfloat16* copy, const float* grad,
           const AdamWRange* ranges, int64_t range_count, int64_t, const AdamWHyper& hyper,
           const StepState* state, Stream) {
  if (state->finite == 0) return;
  const double t = static_cast<double>(state->step + 1);
  AdamWStep step;
  step.beta1 = hyper.beta1;
  step.beta2 = hyper.beta2;
  step.eps = hyper.eps;
  step.inverse_bias1 = static_cast<float>(1.0 / (1.0 - std::pow(double{hyper.beta1}, t)));
  step.inverse_bias2 = static_cast<float>(1.0 / (1.0 - std::pow(double{hyper.beta2}, t)));
  step.clip = state->clip;
  for (int64_t r = 0; r < range_count; ++r) {
    const auto [begin, count, lr_scale, decay, shift, grad_shift] = ranges[r];
    float *const first = m + begin + shift, *const second = v + begin + shift;
    const float* const gradient = grad + begin + grad_shift;
    step.lr = state->lr * lr_scale;
    step.decay = decay;
    if (copy != nullptr) {
      update_range<true>(param + begin, first, second, copy + begin, gradient, count, step);
    } else {
      update_range<false>(param + begin, first, second, nullptr, gradient, count, step);
    }
  }
}

void finish_step(StepState* state, Stream) {
  if (state->finite != 0) {
    ++state->step;
  } else {
    ++state->skipped;
  }
}

void count_nonfinite(int64_t* counts, const float* data, const AdamWRange* ranges,
                     int64_t range_count, Stream) {
  parallel_for(range_count, 1, [=](int64_t r, int64_t) {
    const float* range = data + ranges[r].begin;
    counts[r] = lane_sum<int64_t>(ranges[r].count, [=](int64_t i) {
      return std::isfinite(range[i]) ? int64_t{0} : int64_t{1};
    });
  });
}

}  // namespace quern::kernels::cpu
