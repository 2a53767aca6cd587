#pragma once

#include "autograd/variable.h"

namespace quern {

// x in another dtype, any shape; x itself when it has it. Floats round to nearest even. The
// gradient is cast back.
Variable cast(const Variable& x, DType dtype);

}  // namespace quern
