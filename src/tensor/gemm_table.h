// The current Context's table of GEMM algorithms, as text: a run keeps it, so that it resumes with
// the same algorithms and so the same bits.
#pragma once

#include <cstdint>
#include <string>

namespace quern {

std::string gemm_table();  // empty on the CPU, which has no choice to make
// Uses the algorithms of `text` from now on. Returns false, changing nothing, when it was made on
// another GPU or library version; throws when it is not such a table.
bool use_gemm_table(const std::string& text);

// Uses the table that Quern ships for this GPU and library version (kernels/cuda/gemm_tables), if
// there is one.
bool use_shipped_gemm_table();
void clear_gemm_table();
// From now on each product that the table does not have is timed with every algorithm proposed, and
// its result is meaningless. Nothing on the CPU.
void measure_gemm_algorithms();
int64_t gemm_table_size();  // products in the table

}  // namespace quern
