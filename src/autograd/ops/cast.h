#pragma once

#include "autograd/variable.h"

namespace quern {

// x converted to `dtype`, any shape; x itself if it has that dtype. Floats round to nearest even.
// The gradient is cast back.
Variable cast(const Variable& x, DType dtype);

}  // namespace quern
