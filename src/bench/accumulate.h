// `quern bench accumulate`: 0.01 summed one by one, in the number formats that training uses. Shows
// why every reduction accumulates in FP32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "bench/table.h"

namespace quern {

// What is added: a term of the sum's dtype; a narrower one, widened at each addition; a narrower
// one, converted once before.
enum class AccumulateTerm { same, widened_each, widened_before };

struct AccumulateCase {
  DType sum = DType::f32;
  DType term = DType::f32;  // what 0.01 is rounded to
  AccumulateTerm how = AccumulateTerm::same;
  const char *sum_name = "FP32", *terms = "FP32";  // for the table
};

// FP32, FP16, BF16; FP32 sums of FP16 terms, widened in both ways, and of BF16 terms.
std::vector<AccumulateCase> accumulate_cases();

struct AccumulateRow {
  AccumulateCase one;
  int64_t count = 0;  // additions
  double term = 0.0;  // 0.01 as rounded
  double sum = 0.0;
  double last_step = 0.0;  // what the last addition changed the sum by
};

// Starts at 0 and adds the term `count` times, each sum rounded to the sum's dtype before the next
// addition; by the tensor op `add`, on the current Context's device. Throws UsageError when count
// is below 1.
AccumulateRow accumulate_terms(const AccumulateCase& one, int64_t count);

TableRow table_row(const AccumulateRow& row);
// What the table shows, in two sentences.
std::string accumulate_lesson();

}  // namespace quern
