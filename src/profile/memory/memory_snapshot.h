// memory.pickle: a MemoryTrace in the schema of torch.cuda.memory._snapshot(), which
// pytorch.org/memory_viz draws and `python -m torch.cuda._memory_viz` reads.
#pragma once

#include <filesystem>
#include <string>

#include "profile/memory/memory_trace.h"

namespace quern {

// A pickle of one dict. `segments`: what the allocator holds at the trace's end, each tiled by its
// blocks. `device_traces`: one list of events by time; sizes are bytes as asked for. Frames are
// innermost first: the allocation's name, the op with its inputs' shapes, the parts of the module's
// path, the phase. What was alive when the recording began is allocated by the first events.
std::string memory_snapshot(const MemoryTrace& trace);

// Throws naming the file when it cannot be written.
void write_memory_snapshot(const MemoryTrace& trace, const std::filesystem::path& file);

}  // namespace quern
