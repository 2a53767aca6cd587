// The current Context's table of GEMM algorithms, as text: a run keeps it, so that it resumes with
// the same algorithms and so the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quern {

std::string gemm_table();  // empty on the CPU, which has no choice to make
// Uses the algorithms of `text` from now on. Returns false, changing nothing, when it was made on
// another GPU or library version; throws when it is not such a table.
bool use_gemm_table(const std::string& text);

// Uses the table that Quern ships for this GPU and library version (kernels/cuda/gemm/gemm_tables),
// if there is one.
bool use_shipped_gemm_table();
int64_t gemm_table_size();  // products in the table

// Empties the table. From now on each product that it does not have is timed with every algorithm
// proposed, and its result is meaningless. Nothing on the CPU.
void measure_gemm_algorithms();

// What was found about one product; microseconds, under sustained load or alone. 0: not known.
struct MeasuredProduct {
  std::string name;           // "bf16 8192 x 1536 x 8960 (nt) -> f32"
  double favourite_us = 0.0;  // with the library's own choice
  double before_us = 0.0;     // with the table that was in use
  double chosen_us = 0.0;
  int64_t candidates = 0;
  bool sustained = false;
};
std::vector<MeasuredProduct> measured_products();  // since measure_gemm_algorithms()

}  // namespace quern
