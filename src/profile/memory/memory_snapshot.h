// memory.pickle: a MemoryTrace in the schema of torch.cuda.memory._snapshot(), which
// pytorch.org/memory_viz draws and `python -m torch.cuda._memory_viz` reads.
#pragma once

#include <filesystem>
#include <string>

#include "profile/memory/memory_trace.h"

namespace quern {

// A pickle of one dict. `segments`: the allocator's segments at the trace's end, each tiled by its
// blocks. `device_traces`: one list of events by time; sizes are the requested bytes. Frames,
// innermost first: allocation name, op with its input shapes, parts of the module path, phase. The
// first events allocate the blocks that were live when the recording began.
std::string memory_snapshot(const MemoryTrace& trace);

// Throws an Error that names the file when it cannot be written.
void write_memory_snapshot(const MemoryTrace& trace, const std::filesystem::path& file);

}  // namespace quern
