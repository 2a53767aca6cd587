// Dropout (Srivastava et al., 2014): y = x / (1 - p) where an element is kept, which has
// probability 1 - p, else 0. Random numbers of 16 bits decide, so p is taken to the nearest
// multiple of 2^-16; the scale is of that multiple, and the expectation of y is x. No mask is
// stored: whether an element is kept is a function of the draw, the site and the element's place,
// so the backward and a recomputed forward find the same mask.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"

namespace quern::kernels {

// What the masks of one micro-batch are drawn from. It lives in device memory, so that a captured
// step reads new values. `number` counts the micro-batches of a run.
struct DropoutDraw {
  uint64_t seed = 0, number = 0;
};

// An element is kept when its 16-bit number is at least this: p in units of 2^-16, rounded. Any
// p > 0 drops something and any p < 1 keeps something: 1 to 65535.
inline uint32_t dropout_threshold(double p) {
  if (p <= 0.0) return 0;
  const double threshold = p * 65536.0 + 0.5;
  return threshold < 1.0 ? 1 : threshold < 65535.0 ? static_cast<uint32_t>(threshold) : 65535;
}

// What a kept element is multiplied by: 1 over the probability of keeping it.
inline double dropout_scale(double p) {
  return 65536.0 / (65536.0 - dropout_threshold(p));
}

namespace cpu {
// out = *state, then ++state->number.
void next_draw(DropoutDraw* out, DropoutDraw* state, Stream stream);

// `site` tells the places in a model apart. Micro-batches of n elements each are consecutive parts
// of one stream of random numbers, so a mask does not depend on how sequences are grouped into
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
