// Buffers that collectives move by copies from GPU to GPU, where the ranks' engine can.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "tensor/allocator.h"
#include "tensor/tensor.h"

namespace quern {

// Of buffers to be registered; null: there are no copies, or one rank alone.
std::shared_ptr<MemoryPool> rank_pool(Communicator* ranks);

// A collective of the host's threads. `buffers` are what one collective reads and writes; each has
// as many bytes on every rank and no content yet. Registers all or none: none if one is small,
// which kernels move sooner, or not of a rank_pool().
void register_with(Communicator* ranks, const std::vector<Tensor>& buffers);

}  // namespace quern
