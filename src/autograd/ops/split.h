#pragma once

#include <vector>

#include "autograd/variable.h"

namespace quern {

// Views of consecutive runs along `dim` (-1: the last); the sizes add up to its extent.
std::vector<Variable> split(const Variable& x, const std::vector<int64_t>& sizes, int dim);

}  // namespace quern
