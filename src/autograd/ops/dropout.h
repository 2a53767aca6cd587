// Dropout: x / (1 - p) where an element is kept, which has probability 1 - p, else 0; p has a
// resolution of 2^-16. See kernels/dropout.h for how a mask is drawn.
#pragma once

#include <cstdint>

#include "autograd/variable.h"

namespace quern {

// A source of draws on the current Context's device: u8, one kernels::DropoutDraw. `number` is that
// of the first draw. Copy another source over it to change its place.
Tensor make_draws(uint64_t seed, uint64_t number = 0);
// The next draw of a source, for all sites of one forward and its backward. Taken on the device: a
// captured step takes a new one at every replay.
Tensor next_draw(const Tensor& source);

// x of any shape, 0 <= p < 1; p = 0 gives x itself. The mask is a function of the draw, the site
// and each element's place.
Variable dropout(const Variable& x, double p, const Tensor& draw, uint32_t site);

// The same of small ops: x times a mask of zeros and ones, scaled.
Variable naive_dropout(const Variable& x, double p, const Tensor& draw, uint32_t site);

}  // namespace quern
