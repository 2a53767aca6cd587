// Collectives between processes on CPUs by Gloo. https://github.com/facebookincubator/gloo
#pragma once

#include <chrono>
#include <memory>

#include "dist/communicator.h"
#include "dist/store.h"

namespace quern {

// Throws when this build has no Gloo, and CommunicationError when a rank does not appear within the
// limit.
std::unique_ptr<Communicator> gloo_group(Store& store, int rank, int size,
                                         std::chrono::milliseconds limit);

}  // namespace quern
