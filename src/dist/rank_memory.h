// Buffers that collectives move by copies from GPU to GPU, where the ranks' engine can.
#pragma once

#include <optional>

#include "dist/communicator.h"
#include "tensor/allocator.h"
#include "tensor/tensor.h"

namespace quern {

// Large allocations of its lifetime may be registered with the ranks. null: ordinary memory.
class RankMemoryScope {
 public:
  explicit RankMemoryScope(Communicator* ranks);

 private:
  std::optional<PoolScope> scope_;
};

// A collective of the host's threads. `buffer` has as many bytes on every rank and no content yet.
// Does nothing for what was allocated elsewhere, or shares its segment: kernels move that.
void register_with(Communicator* ranks, const Tensor& buffer);

}  // namespace quern
