// Dropout: keeps each element with probability 1 - p and divides it by 1 - p; the others become 0.
// p has a resolution of 2^-16. kernels/dropout.h describes the masks.
#pragma once

#include <cstdint>

#include "autograd/variable.h"

namespace quern {

// A source of draws on the current Context's device: u8, one kernels::DropoutDraw. The draws have
// the numbers number, number + stride, ... To change the position, copy another source over it.
Tensor make_draws(uint64_t seed, uint64_t number = 0, uint64_t stride = 1);
// The next draw of a source, for all sites of one forward and its backward. It is taken on the
// device: a captured step takes a new one at every replay.
Tensor next_draw(const Tensor& source);

// x of any shape, 0 <= p < 1; p = 0 returns x itself. The mask is a function of the draw, the site
// and each element's index.
Variable dropout(const Variable& x, double p, const Tensor& draw, uint32_t site);

// The same composed of small ops: x times a mask of zeros and ones, scaled.
Variable naive_dropout(const Variable& x, double p, const Tensor& draw, uint32_t site);

}  // namespace quern
