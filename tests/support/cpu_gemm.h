// A matrix product of the CPU's kernel with scratch memory of its own.
#pragma once

#include <vector>

#include "kernels/gemm.h"

namespace quern::testing_support {

template <class TD, class T>
void cpu_gemm(TD* d, const T* a, const T* b, const kernels::Gemm& g) {
  const kernels::cpu::Stream stream{};
  std::vector<float> scratch(kernels::cpu::gemm_scratch(g, dtype_of<T>, stream) / sizeof(float));
  kernels::GemmResources resources;
  resources.scratch = scratch.data();
  kernels::cpu::gemm(d, a, b, g, resources, stream);
}

}  // namespace quern::testing_support
