// Softmax along one dimension (-1: the last), the maximum subtracted, statistics in FP32 (FP64 for
// f64). A row of -inf gives zeros.
#pragma once

#include "autograd/variable.h"

namespace quern {

Variable softmax(const Variable& x, int dim = -1);
Variable log_softmax(const Variable& x, int dim = -1);

}  // namespace quern
