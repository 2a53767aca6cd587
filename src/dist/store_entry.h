// The sizes that every kind of store accepts.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"
#include "dist/communicator.h"

namespace quern {

inline constexpr size_t kMostKeyBytes = 1024, kMostValueBytes = size_t{1} << 20;

// Throws CommunicationError.
inline void check_store_entry(const std::string& address, const std::string& key,
                              const std::string& value) {
  if (key.empty() || key.size() > kMostKeyBytes) {
    throw CommunicationError(
        cat(address, ": a key has ", key.size(), " bytes, expected 1 to ", kMostKeyBytes));
  }
  if (value.size() > kMostValueBytes) {
    throw CommunicationError(cat(address, ": the value of '", key, "' has ", value.size(),
                                 " bytes, expected at most ", kMostValueBytes));
  }
}

}  // namespace quern
