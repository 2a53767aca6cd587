// System calls that a signal may interrupt.
#pragma once

#include <cerrno>

namespace quern {

// Repeats a call while it returns -1 with EINTR. Not for close(): Linux has released the
// descriptor.
template <class Call>
auto retried(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace quern
