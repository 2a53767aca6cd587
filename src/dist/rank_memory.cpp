#include "dist/rank_memory.h"

#include <algorithm>

#include "tensor/context.h"

namespace quern {

namespace {

// A tensor of more bytes has a segment of its own (tensor/allocator.cpp).
constexpr int64_t kOwnSegment = int64_t{16} << 20;

Allocator& allocator() {
  const Context& context = Context::current();
  return *context.allocator(context.device());
}

}  // namespace

RankMemoryScope::RankMemoryScope(Communicator* ranks) {
  if (ranks == nullptr || Context::current().is_dry()) return;
  if (auto memory = ranks->memory()) {
    scope_.emplace(allocator(), allocator().make_pool(std::move(memory)));
  }
}

void register_with(Communicator* ranks, const Tensor& buffer) {
  if (ranks == nullptr || !buffer.defined() || buffer.bytes() <= kOwnSegment) return;
  if (Context::current().is_dry() || !ranks->memory()) return;
  for (const auto& [segment, bytes] : allocator().held_segments()) {
    if (segment == buffer.raw_data()) return ranks->register_memory(segment, bytes);
  }
}

}  // namespace quern
