// Buffers that collectives move by copies from GPU to GPU, where the ranks' engine can.
#pragma once

#include <memory>

#include "dist/communicator.h"
#include "tensor/allocator.h"
#include "tensor/tensor.h"

namespace quern {

// Of buffers to be registered; null: there are no copies, or one rank alone.
std::shared_ptr<MemoryPool> rank_pool(Communicator* ranks);

// A collective of the host's threads. `buffer` has as many bytes on every rank and no content yet.
// Does nothing for a small one, which kernels move sooner, or one that is not of a rank_pool().
void register_with(Communicator* ranks, const Tensor& buffer);

}  // namespace quern
