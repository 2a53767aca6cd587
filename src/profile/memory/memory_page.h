// A MemoryTrace as one self-contained HTML page, memory.html: the timeline stacked by category,
// what was in use at the peak or at any moment, and every allocation. It loads nothing. `subject`
// heads the page: "small: 12 layers of 768, batch 4, context 512, bf16".
#pragma once

#include <filesystem>
#include <string>

#include "profile/memory/memory_trace.h"

namespace quern {

std::string memory_page(const MemoryTrace& trace, const std::string& subject);

// Throws an Error that names the file when it cannot be written.
void write_memory_page(const MemoryTrace& trace, const std::string& subject,
                       const std::filesystem::path& path);

}  // namespace quern
