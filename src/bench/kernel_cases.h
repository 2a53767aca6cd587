// The cases of `quern bench kernels`: the shapes, the bytes, and the call of each kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace quern {

// A call to time, with its inputs allocated.
struct KernelWork {
  std::function<void()> run;
  std::function<void()> prepare = [] {};  // before each call, not timed
};

struct KernelVariant {
  std::string name;                  // "naive", "online", "fused"
  std::function<KernelWork()> make;  // allocates the inputs
};

struct KernelCase {
  std::vector<int64_t> shape;  // as the peer prints it; one extent: a count
  DType dtype = DType::f32;
  int64_t bytes = 0;  // least traffic: each input read once, each output written once
  std::vector<KernelVariant> variants;
};

inline int64_t bytes_of(DType dtype, int64_t elements) {
  return static_cast<int64_t>(size_of(dtype)) * elements;
}

// The cases of one key of torch_kernels.py.
struct KernelFamily {
  const char* name;
  std::vector<KernelCase> (*cases)(int64_t rows);  // 0: the peer's rows
};

const std::vector<KernelFamily>& kernel_families();  // in the peer's order

// The roofline's bandwidth ceiling: one copy within the device. 0 rows: 1 GiB; else 32 KiB a row.
KernelCase copy_case(int64_t rows);

// The compute ceiling: a square matrix product, large enough to keep the device busy.
KernelCase matmul_case(DType dtype);

}  // namespace quern
