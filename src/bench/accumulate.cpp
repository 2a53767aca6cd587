#include "bench/accumulate.h"

#include "autograd/ops/binary.h"
#include "autograd/tape.h"
#include "config/config.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr double kTerm = 0.01;

const char* format_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "FP32";
    case DType::f16: return "FP16";
    case DType::bf16: return "BF16";
    default: fail(cat("bench accumulate: found ", dtype, ", expected f32, f16 or bf16"));
  }
}

std::string how_name(const AccumulateCase& one) {
  switch (one.how) {
    case AccumulateTerm::same: return format_name(one.term);
    case AccumulateTerm::widened_each: return cat(format_name(one.term), ", widened each time");
    case AccumulateTerm::widened_before: return cat(format_name(one.term), ", converted before");
  }
  fail("bench accumulate: unknown kind of term");
}

// The next term to add, of the sum's dtype, which is what `add` takes.
Tensor next_term(const AccumulateCase& one, const Tensor& stored, const Tensor& widened) {
  switch (one.how) {
    case AccumulateTerm::same: return stored;
    case AccumulateTerm::widened_each: return stored.to(one.sum);
    case AccumulateTerm::widened_before: return widened;
  }
  fail("bench accumulate: unknown kind of term");
}

}  // namespace

std::vector<AccumulateCase> accumulate_cases() {
  using enum AccumulateTerm;
  return {{DType::f32, DType::f32, same},           {DType::f16, DType::f16, same},
          {DType::bf16, DType::bf16, same},         {DType::f32, DType::f16, widened_each},
          {DType::f32, DType::f16, widened_before}, {DType::f32, DType::bf16, widened_each}};
}

AccumulateRow accumulate_terms(const AccumulateCase& one, int64_t count) {
  if (count < 1) throw UsageError(cat("--count is ", count, ", expected at least 1"));
  const NoGrad no_grad;
  const Tensor stored = full({}, kTerm, one.term), widened = stored.to(one.sum);
  Tensor sum = zeros({}, one.sum), before;
  for (int64_t i = 0; i < count; ++i) {
    before = sum;
    sum = add(sum, next_term(one, stored, widened)).value();
  }
  AccumulateRow row{one, count, stored.item(), sum.item(), 0.0};
  row.last_step = row.sum - before.item();
  return row;
}

std::vector<Column> accumulate_columns() {
  return {{"", "peer"},
          {"sum in", "sum_dtype", 0, 6, Align::left},
          {"terms", "terms", 0, 24, Align::left},
          {"", "count"},
          {"term", "term", 7, 10},
          {"sum", "sum", 4, 9},
          {"error %", "error_percent", 3, 9},
          {"last addition added", "last_step", 6, 19}};
}

std::vector<Cell> accumulate_cells(const AccumulateRow& row, const std::string& peer) {
  const double exact = kTerm * static_cast<double>(row.count);
  return {peer,    std::string(format_name(row.one.sum)), how_name(row.one), row.count, row.term,
          row.sum, 100.0 * (row.sum - exact) / exact,     row.last_step};
}

std::string accumulate_lesson() {
  return "A sum grows only as finely as its own format: from 8 to 16 FP16 numbers are 0.0078 apart "
         "and each\naddition of 0.01 is rounded to that, and from 4 on BF16 numbers are 0.031 "
         "apart and it is rounded away.\nAn FP32 sum of a thousand 16-bit terms is wrong by hardly "
         "more than the rounding of the term itself: so\nproducts and activations may be stored in "
         "16 bits, and every sum of them (matrix products, norms, softmax,\nthe loss, gradients) "
         "is taken in FP32. A million terms one after the other are too many for FP32 as well\n"
         "(try --count): long sums are taken in parts.\n";
}

}  // namespace quern
