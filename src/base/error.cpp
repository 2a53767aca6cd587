#include "base/error.h"

namespace quern {

void fail(const std::string& message) {
  throw Error(message);
}

}  // namespace quern
