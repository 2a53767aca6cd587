#include "dist/rank_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

// Larger ones have a segment of their own (tensor/allocator.cpp).
static constexpr int64_t kSmall = int64_t{16} << 20;

std::shared_ptr<MemoryPool> rank_pool(Communicator* ranks) {
  if (ranks == nullptr || Context::current().is_dry()) return nullptr;
  auto memory = ranks->memory();
  return memory ? Context::current().allocator()->make_pool(std::move(memory)) : nullptr;
}

void register_with(Communicator* ranks, const std::vector<Tensor>& buffers) {
  const Context& context = Context::current();
  if (ranks == nullptr || context.is_dry()) return;
  const auto held = context.allocator()->held_segments();
  std::vector<std::pair<void*, int64_t>> segments;
  for (const Tensor& buffer : buffers) {
    if (!buffer.defined() || buffer.bytes() <= kSmall) return;
    const auto found = std::ranges::find(held, buffer.raw_data(),
                                         [](const auto& segment) { return segment.first; });
    if (found == held.end()) return;
    segments.emplace_back(found->first, found->second);
  }
  context.synchronize();  // the buffers' first contents may be on their way
  for (const auto& [segment, bytes] : segments) {
    if (ranks->register_memory(segment, bytes)) continue;
    QUERN_CHECK(segment == segments.front().first, ranks->engine(), " registered the first of ",
                segments.size(), " buffers that one collective uses, but not all");
    return;
  }
}

}  // namespace quern
