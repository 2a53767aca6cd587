// Collectives between GPUs by NCCL, which is loaded at run time: without it one GPU works as before.
#pragma once

#include <chrono>
#include <memory>

#include "dist/communicator.h"
#include "dist/store.h"

namespace quern {

// Whether libnccl.so.2 can be loaded here; why_not (may be null) receives the reason otherwise.
bool nccl_available(std::string* why_not = nullptr);

// A group of GPUs, one a rank: that of the current Context. Throws CommunicationError when a rank
// does not appear within the limit.
std::unique_ptr<Communicator> nccl_group(Store& store, int rank, int size,
                                         std::chrono::milliseconds limit);

}  // namespace quern
