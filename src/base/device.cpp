#include "base/device.h"

#include <ostream>

namespace quern {

std::ostream& operator<<(std::ostream& out, const Device& device) {
  if (!device.is_cuda()) return out << "cpu";
  return out << "cuda:" << device.index;
}

}  // namespace quern
