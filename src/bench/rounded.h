// Numbers as the JSON lines print them.
#pragma once

#include <cmath>

namespace quern {

// To this many digits behind the point.
inline double rounded(double value, double digits) {
  const double unit = std::pow(10.0, digits);
  return std::round(value * unit) / unit;
}

}  // namespace quern
