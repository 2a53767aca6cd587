#include "tensor/gemm_table.h"

#include <sstream>

#include "tensor/context.h"
#ifdef QUERN_WITH_CUDA
#include "kernels/cuda/gemm_algorithms.h"
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

#else

std::string gemm_table() {
  return "";
}
bool use_gemm_table(const std::string&) {
  return false;
}

#endif

}  // namespace quern
