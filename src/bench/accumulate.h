// `quern bench accumulate`: 0.01 summed one by one, in the number formats that training uses. Shows
// why every reduction accumulates in FP32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "bench/table.h"

namespace quern {

// The term of each addition: in the sum's dtype; narrower and widened at each addition; narrower
// and widened once before.
enum class AccumulateTerm { same, widened_each, widened_before };

struct AccumulateCase {
  DType sum = DType::f32;
  DType term = DType::f32;  // 0.01 is rounded to this dtype
  AccumulateTerm how = AccumulateTerm::same;
  const char *sum_name = "FP32", *terms = "FP32";  // for the table
};

// FP32, FP16, BF16; FP32 sums of FP16 terms, widened in both ways, and of BF16 terms.
std::vector<AccumulateCase> accumulate_cases();

struct AccumulateRow {
  AccumulateCase one;
  int64_t count = 0;  // additions
  double term = 0.0;  // 0.01 rounded to the term's dtype
  double sum = 0.0;
  double last_step = 0.0;  // the change of the sum by the last addition
};

// Starts at 0 and adds the term `count` times by the tensor op `add`, on the current Context's
// device. Each sum is rounded to the sum's dtype before the next addition. `count` is at least 1.
AccumulateRow accumulate_terms(const AccumulateCase& one, int64_t count);

TableRow table_row(const AccumulateRow& row);
// The lesson of the table, in two sentences.
std::string accumulate_lesson();

}  // namespace quern
