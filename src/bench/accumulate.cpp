#include "bench/accumulate.h"

#include "autograd/ops/binary.h"
#include "autograd/tape.h"
#include "bench/harness.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr double kTerm = 0.01;

// The next term, in the sum's dtype as `add` requires.
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
  constexpr DType f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16;
  return {{f32, f32, same, "FP32", "FP32"},
          {f16, f16, same, "FP16", "FP16"},
          {bf16, bf16, same, "BF16", "BF16"},
          {f32, f16, widened_each, "FP32", "FP16, widened each time"},
          {f32, f16, widened_before, "FP32", "FP16, converted before"},
          {f32, bf16, widened_each, "FP32", "BF16, widened each time"}};
}

AccumulateRow accumulate_terms(const AccumulateCase& one, int64_t count) {
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

TableRow table_row(const AccumulateRow& row) {
  const double exact = kTerm * static_cast<double>(row.count);
  return {{},
          {{{"sum in", "sum_dtype", 0, 6, Align::left}, row.one.sum_name},
           {{"terms", "terms", 0, 24, Align::left}, row.one.terms},
           {{"", "count"}, row.count},
           {{"term", "term", 7, 10}, row.term},
           {{"sum", "sum", 4, 9}, row.sum},
           {{"error %", "error_percent", 3, 9}, 100.0 * (row.sum - exact) / exact},
           {{"last addition added", "last_step", 6, 19}, row.last_step}},
          {}};
}

std::string accumulate_lesson() {
  return "A sum grows only as finely as its own format: from 8 to 16 FP16 numbers are 0.0078 apart "
         "and each\naddition of 0.01 is rounded to that, and from 4 on BF16 numbers are 0.031 "
         "apart and it is rounded\naway. An FP32 sum of a thousand 16-bit terms is wrong by hardly "
         "more than the rounding of the term\nitself: so products and activations may be stored in "
         "16 bits, and every sum of them (matrix\nproducts, norms, softmax, the loss, gradients) "
         "is "
         "taken in FP32. A million terms one after the\nother are too many for FP32 as well (try "
         "--count): long sums are taken in parts.\n";
}

}  // namespace quern
