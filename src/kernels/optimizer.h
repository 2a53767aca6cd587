// The end of a training step: the global gradient norm, clipping, and AdamW over the whole arena in
// one launch.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/weights.h"

namespace quern::kernels {

// The step's scalars; they live in device memory, so that a captured step reads new values.
struct StepState {
  float lr = 0.0f;
  float norm = 0.0f;    // gradient norm before clipping
  float clip = 1.0f;    // the factor that AdamW applies to every gradient
  int32_t finite = 1;   // 0: the update is skipped
  int64_t step = 0;     // updates done
  int64_t skipped = 0;  // updates not done because of a non-finite loss or norm
  int32_t halt = 0;     // 1: once a step was skipped since set_progress, all later ones are too
  int64_t skipped_before = 0;  // set_progress
};

// A run of parameters that share their treatment.
struct AdamWRange {
  int64_t begin = 0, count = 0;  // elements
  float lr_scale = 1.0f;
  float decay = 0.0f;       // weight decay of this range
  int64_t shift = 0;        // the moments of element i lie at i + shift
  int64_t grad_shift = 0;   // its gradient at i + grad_shift
  int64_t arena_shift = 0;  // its index in the arena of all ranks is i + arena_shift
};

struct AdamWHyper {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  uint64_t seed = 0;  // of the rounding of BF16 moments
};

// Elements of the arena with one partial sum of the norm. Blocks of a model begin at multiples of
// it, and so do the slices of ranks.
inline constexpr int64_t kNormChunk = 512;

inline constexpr int64_t norm_chunks(int64_t n) {
  return (n + kNormChunk - 1) / kNormChunk;
}

namespace cpu {
void store_learning_rate(StepState* state, float lr, Stream stream);

// The norm of the gradients in two stages. partial[i] = the sum of the squares of chunk i of
// `grad`, of kNormChunk elements; the last one may be shorter. So ranks can share the first stage.
// A partial sum has norm_partial_bytes().
int64_t norm_partial_bytes(Stream stream);
void sum_squares(void* partial, const float* grad, int64_t n, Stream stream);

// state->norm = sqrt(the sum of `count` partial sums, which are lost) * grad_scale, in a fixed
// order; state->clip = grad_scale * min(1, max_norm / (norm + 1e-6)), or grad_scale when max_norm
// is 0; state->finite = norm and *loss are finite (loss may be null).
void finish_norm(StepState* state, void* partial, int64_t count, float grad_scale, float max_norm,
                 const float* loss, Stream stream);

// One step of AdamW (Loshchilov and Hutter, 2019) over every range, with decoupled decay and bias
// correction: g = grad clip; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
// p -= lr lr_scale (decay p + (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)), with
// t = state->step + 1. Does nothing at all when state->finite is 0. `ranges` lies on the device;
// offsets are in elements, those of moments and gradients shifted. Moment: float, or bfloat16: then
// p takes m and v before they are rounded, as round_moments does.
template <class Moment>
void adamw(const WeightArrays& weights, Moment* m, Moment* v, const float* grad,
           const AdamWRange* ranges, int64_t range_count, int64_t total, const AdamWHyper& hyper,
           const StepState* state, Stream stream);

// m and v of n elements from FP32, rounded at random (common/stochastic_rounding.h) with the
// numbers of update t. `place`: the first one's index in the arena of all ranks.
void round_moments(bfloat16* m, bfloat16* v, const float* exact_m, const float* exact_v, int64_t n,
                   int64_t place, uint64_t seed, int64_t t, Stream stream);

// After the update: step += 1 when finite, else skipped += 1.
void finish_step(StepState* state, Stream stream);

// counts[i] = the number of non-finite elements of grad range i.
void count_nonfinite(int64_t* counts, const float* data, const AdamWRange* ranges,
                     int64_t range_count, Stream stream);
}  // namespace cpu

namespace cuda {
void store_learning_rate(StepState* state, float lr, Stream stream);
int64_t norm_partial_bytes(Stream stream);
void sum_squares(void* partial, const float* grad, int64_t n, Stream stream);
void finish_norm(StepState* state, void* partial, int64_t count, float grad_scale, float max_norm,
                 const float* loss, Stream stream);
template <class Moment>
void adamw(const WeightArrays& weights, Moment* m, Moment* v, const float* grad,
           const AdamWRange* ranges, int64_t range_count, int64_t total, const AdamWHyper& hyper,
           const StepState* state, Stream stream);
void round_moments(bfloat16* m, bfloat16* v, const float* exact_m, const float* exact_v, int64_t n,
                   int64_t place, uint64_t seed, int64_t t, Stream stream);
void finish_step(StepState* state, Stream stream);
void count_nonfinite(int64_t* counts, const float* data, const AdamWRange* ranges,
                     int64_t range_count, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
