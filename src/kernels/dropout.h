// Dropout (Srivastava et al., 2014): keeps an element with probability 1 - p, y = x / (1 - p), else
// y = 0. 16-bit random numbers decide, so p is rounded to a multiple of 2^-16. The scale uses the
// rounded p, so the expectation of y is x. No mask is stored: it is a function of the draw, the
// site and the element's index, so the backward and a recomputed forward get the same mask.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

// The source of one micro-batch's masks. It lives in device memory, so that a captured step reads
// new values. `number` counts the micro-batches of a run; this rank takes each stride-th of them.
struct DropoutDraw {
  uint64_t seed = 0, number = 0, stride = 1;
};

// An element is kept when its 16-bit number is at least this: p in units of 2^-16, rounded. Any
// p > 0 drops something and any p < 1 keeps something: 1 to 65535.
inline uint32_t dropout_threshold(double p) {
  if (p <= 0.0) return 0;
  const double threshold = p * 65536.0 + 0.5;
  return threshold < 1.0 ? 1 : threshold < 65535.0 ? static_cast<uint32_t>(threshold) : 65535;
}

// The factor on a kept element: 1 over the probability of keeping it.
inline double dropout_scale(double p) {
  return 65536.0 / (65536.0 - dropout_threshold(p));
}

namespace cpu {
// out = *state, then state->number += state->stride.
void next_draw(DropoutDraw* out, DropoutDraw* state, Stream stream);

// `site` identifies a place in the model. Micro-batches of n elements each are consecutive parts of
// one stream of random numbers, so a mask does not depend on how sequences are grouped into
// micro-batches. The backward is the same function of dy. y may be x. T: float, bfloat16, and on
// the CPU double.
template <class T>
void dropout(T* y, const T* x, int64_t n, double p, uint32_t site, const DropoutDraw* draw,
             Stream stream);
}  // namespace cpu

namespace cuda {
void next_draw(DropoutDraw* out, DropoutDraw* state, Stream stream);
template <class T>
void dropout(T* y, const T* x, int64_t n, double p, uint32_t site, const DropoutDraw* draw,
             Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
