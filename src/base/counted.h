// A number with its noun, or in its unit.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace quern {

// "1 document", "2 documents".
inline std::string counted(int64_t count, const std::string& noun) {
  return cat(count, ' ', noun, count == 1 ? "" : "s");
}

inline double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace quern
