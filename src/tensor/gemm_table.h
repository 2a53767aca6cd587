// The current Context's table of GEMM algorithms, as text. A run saves it, so that a resumed run
// uses the same algorithms and gets the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quern {

std::string gemm_table();  // empty on the CPU, which has one algorithm
// Uses the algorithms of `text` from now on. Returns false, without any change, for the table of
// another GPU or library version. Throws when `text` is not a table.
bool use_gemm_table(const std::string& text);

// Uses the table that Quern ships for this GPU and library version (kernels/cuda/gemm/gemm_tables).
// Returns false if there is none.
bool use_shipped_gemm_table();
int64_t gemm_table_size();  // products in the table

// Empties the table. From now on, each product not in it is timed with every proposed algorithm,
// and its result is meaningless. Does nothing on the CPU.
void measure_gemm_algorithms();

// The measured times of one product: microseconds, under sustained load or alone. 0: unknown.
struct MeasuredProduct {
  std::string name;           // "bf16 8192 x 1536 x 8960 (nt) -> f32"
  double favourite_us = 0.0;  // with the library's own choice
  double before_us = 0.0;     // with the previous table
  double chosen_us = 0.0;
  int64_t candidates = 0;
  bool sustained = false;
};
std::vector<MeasuredProduct> measured_products();  // since measure_gemm_algorithms()

}  // namespace quern
