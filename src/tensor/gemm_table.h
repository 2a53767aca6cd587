// The current Context's table of GEMM algorithms, as text: a run keeps it, so that it resumes with
// the same algorithms and so the same bits.
#pragma once

#include <string>

namespace quern {

std::string gemm_table();  // empty on the CPU, which has no choice to make
// Uses the algorithms of `text` from now on. Returns false, changing nothing, when it was made on
// another GPU or library version; throws when it is not such a table.
bool use_gemm_table(const std::string& text);

}  // namespace quern
