#include "dist/rank_memory.h"

#include <utility>

#include "tensor/context.h"

namespace quern {

// Larger ones have a segment of their own (tensor/allocator.cpp).
static constexpr int64_t kSmall = int64_t{16} << 20;

std::shared_ptr<MemoryPool> rank_pool(Communicator* ranks) {
  if (ranks == nullptr || Context::current().is_dry()) return nullptr;
  auto memory = ranks->memory();
  return memory ? Context::current().allocator()->make_pool(std::move(memory)) : nullptr;
}

void register_with(Communicator* ranks, const Tensor& buffer) {
  const Context& context = Context::current();
  if (ranks == nullptr || context.is_dry()) return;
  if (!buffer.defined() || buffer.bytes() <= kSmall) return;
  for (const auto& [segment, bytes] : context.allocator()->held_segments()) {
    if (segment != buffer.raw_data()) continue;
    context.synchronize();  // the buffer's first contents may be on their way
    return ranks->register_memory(segment, bytes);
  }
}

}  // namespace quern
