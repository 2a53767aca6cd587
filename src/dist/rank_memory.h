// Buffers that collectives move by copies from GPU to GPU, where the ranks' engine can.
#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "tensor/allocator.h"
#include "tensor/tensor.h"

namespace quern {

// The pool of buffers that register_with() can register. Null where the group cannot move memory by
// copies, and for one rank.
std::shared_ptr<MemoryPool> rank_pool(Communicator* ranks);

// Registers the buffers that one collective reads and writes; each has the same size on every rank
// and no content yet. Registers all or none: none if one is not from a rank_pool(), or is so small
// that kernels move it sooner. A collective of the host's threads.
void register_with(Communicator* ranks, const std::vector<Tensor>& buffers);

}  // namespace quern
