// Softmax along one dimension (-1: the last), with the maximum subtracted and statistics in FP32
// (FP64 for f64). A row of -inf gives zeros (log_softmax: -inf).
#pragma once

#include "autograd/variable.h"

namespace quern {

Variable softmax(const Variable& x, int dim = -1);
Variable log_softmax(const Variable& x, int dim = -1);

}  // namespace quern
