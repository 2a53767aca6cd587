#include "tensor/gemm_table.h"

#include <sstream>

#include "tensor/context.h"
#ifdef QUERN_WITH_CUDA
#include "kernels/cuda/gemm_algorithms.h"
#include "shipped_gemm_tables.h"  // made by cmake/GemmTables.cmake
#endif

namespace quern {

#ifdef QUERN_WITH_CUDA

std::string gemm_table() {
  std::ostringstream out;
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

void clear_gemm_table() {
  if (kernels::GemmAlgorithms* table = Context::current().gemm().algorithms) table->clear();
}

void measure_gemm_algorithms() {
  if (kernels::GemmAlgorithms* table = Context::current().gemm().algorithms) {
    table->measuring = true;
  }
}

int64_t gemm_table_size() {
  const kernels::GemmAlgorithms* table = Context::current().gemm().algorithms;
  return table ? static_cast<int64_t>(table->size()) : 0;
}

#else

std::string gemm_table() {
  return "";
}
bool use_gemm_table(const std::string&) {
  return false;
}
bool use_shipped_gemm_table() {
  return false;
}
void clear_gemm_table() {}
void measure_gemm_algorithms() {}
int64_t gemm_table_size() {
  return 0;
}

#endif

}  // namespace quern
