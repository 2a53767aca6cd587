// How the user says what a data path holds.
#pragma once

namespace quern {

// text: bytes; nanogpt: raw little-endian uint16 tokens; llmc: tokens behind llm.c's header;
// automatic: by name and content (see open_dataset).
enum class DataFormat { automatic, text, nanogpt, llmc };

}  // namespace quern
