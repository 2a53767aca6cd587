#pragma once

#include <vector>

#include "autograd/variable.h"

namespace quern {

// Joins the parts along `dim` (-1: the last). At least one part; all have one dtype, one device and
// the same other extents.
Variable concat(const std::vector<Variable>& parts, int dim);

}  // namespace quern
