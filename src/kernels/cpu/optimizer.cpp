// The end of a step: the gradient's norm and the clip factor, AdamW in one pass over every range,
// and the step's counters.
#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/common/parallel.h"
#include "kernels/common/stochastic_rounding.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/random_numbers.h"
#include "kernels/cpu/with_weights.h"

namespace quern::kernels::cpu {
namespace {

// Constants of one update of one range.
struct AdamWStep {
  float beta1, beta2, eps;
  float inverse_bias1, inverse_bias2;  // 1 / (1 - beta^t)
  float clip, lr, decay;
  uint64_t seed;
  int64_t t;
};

// Calls body(i, random) for each element, with its random word where a Moment is rounded. `place`:
// the first one's index in the arena of all ranks.
template <class Moment, class Body>
void for_moments(int64_t count, int64_t place, uint64_t seed, int64_t t, const Body& body) {
  if constexpr (std::is_same_v<Moment, float>) {
    parallel_elements(count, [=](int64_t i) { body(i, 0u); });
  } else {
    const auto words = [=](uint64_t block) { return rounding_words(seed, t, block); };
    for_random_numbers<uint32_t>(count, static_cast<uint64_t>(place), words, body);
  }
}

void store_moments(float* m, float* v, float first, float second, uint32_t) {
  *m = first;
  *v = second;
}
void store_moments(bfloat16* m, bfloat16* v, float first, float second, uint32_t random) {
  *m = bfloat16(round_at_random(first, random));
  *v = bfloat16(round_at_random(second, random >> 16));
}

// Of the range's first element on. Fused by name: where the compiler chooses, weights in FP32 and
// in parts may differ in the last bit, and so would ranks.
template <class Weights, class Moment>
void update_range(Weights weights, Moment* m, Moment* v, const float* grad, int64_t count,
                  int64_t place, const AdamWStep& step) {
  for_moments<Moment>(count, place, step.seed, step.t, [=](int64_t i, uint32_t random) {
    const float g = grad[i] * step.clip;
    const float first = std::fma(step.beta1, static_cast<float>(m[i]), (1.0f - step.beta1) * g);
    const float second =
        std::fma(step.beta2, static_cast<float>(v[i]), (1.0f - step.beta2) * (g * g));
    const float root = std::sqrt(second * step.inverse_bias2) + step.eps;
    const float p = weights.get(i);
    const float change = std::fma(step.decay, p, first * step.inverse_bias1 / root);
    const float next = std::fma(-step.lr, change, p);
    store_moments(m + i, v + i, first, second, random);
    weights.set(i, next);
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

template <class Moment>
void adamw(const WeightArrays& weights, Moment* m, Moment* v, const float* grad,
           const AdamWRange* ranges, int64_t range_count, int64_t, const AdamWHyper& hyper,
           const StepState* state, Stream) {
  if (state->finite == 0) return;
  const double t = static_cast<double>(state->step + 1);
  AdamWStep step;
  step.seed = hyper.seed;
  step.t = state->step + 1;
  step.beta1 = hyper.beta1;
  step.beta2 = hyper.beta2;
  step.eps = hyper.eps;
  step.inverse_bias1 = static_cast<float>(1.0 / (1.0 - std::pow(double{hyper.beta1}, t)));
  step.inverse_bias2 = static_cast<float>(1.0 / (1.0 - std::pow(double{hyper.beta2}, t)));
  step.clip = state->clip;
  for (int64_t r = 0; r < range_count; ++r) {
    const auto [begin, count, lr_scale, decay, shift, grad_shift, arena_shift] = ranges[r];
    Moment *const first = m + begin + shift, *const second = v + begin + shift;
    const float* const gradient = grad + begin + grad_shift;
    step.lr = state->lr * lr_scale;
    step.decay = decay;
    with_weights(weights, begin, [&](auto here) {
      update_range(here, first, second, gradient, count, begin + arena_shift, step);
    });
  }
}
template void adamw(const WeightArrays&, float*, float*, const float*, const AdamWRange*, int64_t,
                    int64_t, const AdamWHyper&, const StepState*, Stream);
template void adamw(const WeightArrays&, bfloat16*, bfloat16*, const float*, const AdamWRange*,
                    int64_t, int64_t, const AdamWHyper&, const StepState*, Stream);

void round_moments(bfloat16* m, bfloat16* v, const float* exact_m, const float* exact_v, int64_t n,
                   int64_t place, uint64_t seed, int64_t t, Stream) {
  for_moments<bfloat16>(n, place, seed, t, [=](int64_t i, uint32_t random) {
    store_moments(m + i, v + i, exact_m[i], exact_v[i], random);
  });
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
