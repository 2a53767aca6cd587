#include "tensor/gemm_table.h"

#include <sstream>

#include "kernels/gemm_algorithms.h"
#include "shipped_gemm_tables.h"  // made by cmake/GemmTables.cmake
#include "tensor/context.h"

namespace quern {

std::string gemm_table() {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // without memory it throws, and cuts nothing off
  if (const kernels::GemmAlgorithms* table = Context::current().gemm().algorithms) table->save(out);
  return out.str();
}

bool use_gemm_table(const std::string& text) {
  kernels::GemmAlgorithms* table = Context::current().gemm().algorithms;
  std::istringstream in(text);
  return table != nullptr && table->load(in);
}

bool use_shipped_gemm_table() {
  for (const char* table : kShippedGemmTables) {
    if (*table != '\0' && use_gemm_table(table)) return true;
  }
  return false;
}

void measure_gemm_algorithms() {
  if (kernels::GemmAlgorithms* table = Context::current().gemm().algorithms) {
    table->start_measuring();
  }
}

int64_t gemm_table_size() {
  const kernels::GemmAlgorithms* table = Context::current().gemm().algorithms;
  return table ? static_cast<int64_t>(table->size()) : 0;
}

namespace {

std::string name_of(const kernels::GemmProblem& p) {
  const auto type = [](int64_t dtype) {
    return dtype == kernels::GemmProblem::kFp8 ? "fp8" : cat(static_cast<DType>(dtype));
  };
  const bool tf32 = p.math == static_cast<int64_t>(kernels::MatmulMath::tf32);
  std::string name =
      cat(tf32 ? "tf32" : type(p.input_type), " ", p.m, " x ", p.n, " x ", p.k, " (",
          p.transpose_a ? "t" : "n", p.transpose_b ? "t" : "n", ") -> ", type(p.output_type));
  if ((p.math & kernels::GemmProblem::kBiased) != 0) name += ", bias";
  if ((p.math & kernels::GemmProblem::kTilesInA) != 0) name += ", tiles of the left";
  if ((p.math & kernels::GemmProblem::kTilesInB) != 0) name += ", tiles of the right";
  if (p.batch > 1) name += cat(", batch ", p.batch);
  return name;
}

}  // namespace

std::vector<MeasuredProduct> measured_products() {
  std::vector<MeasuredProduct> products;
  const kernels::GemmAlgorithms* table = Context::current().gemm().algorithms;
  if (!table) return products;
  for (const kernels::GemmMeasurement& m : table->measurements) {
    products.push_back(
        {name_of(m.problem), m.favourite_us, m.before_us, m.chosen_us, m.candidates, m.sustained});
  }
  return products;
}

}  // namespace quern
