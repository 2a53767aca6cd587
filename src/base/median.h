// The median of numbers.
#pragma once

#include <algorithm>
#include <vector>

namespace quern {

// The middle one, or the mean of the two in the middle, of at least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace quern
