// `quern bench kernels`: the memory-bound kernels, each fused and as a naive composition of ops,
// against the copy bandwidth and the roofline of the same run. Kernels, shapes and byte counts are
// those of benchmarks/peers/torch_kernels.py.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "bench/harness.h"
#include "bench/kernel_accounts.h"
#include "bench/table.h"

namespace quern {

inline constexpr int64_t kCpuRows = 256;  // default rows of every tensor on the CPU

struct KernelBenchOptions {
  std::vector<std::string> kernels;  // some of kernel_names(); empty: all
  std::vector<std::string> variants{"naive", "online", "fused"};  // online: softmax only
  int64_t rows = 0;    // rows of every tensor; 0: the peer's, which exceed a GPU's L2 cache
  int64_t warmup = 5;  // minimum of unmeasured calls; the warm-up takes at least 50 ms
  int64_t steps = 20;  // measured calls
};

// In the order in which they run: softmax, gelu, rmsnorm_fwd, ...
std::vector<std::string> kernel_names();

struct KernelRow {
  std::string kernel, variant;      // the ceilings: "copy", "memcpy" and "matmul", "gemm"
  std::vector<int64_t> shape;       // of the main input; one extent: a count of parameters or bytes
  DType dtype = DType::f32;         // of the main input
  Summary time;                     // milliseconds
  int64_t bytes = 0;                // least traffic: each input read once, each output written once
  double copy_tb_per_second = 0.0;  // measured in this run
  double matmul_tflops = 0.0;       // measured in this run, in this dtype; 0 when it was not
  std::optional<KernelAccount> account;
  std::string out_of_memory;  // the allocator's message; then there are no figures

  double tb_per_second() const;  // 10^12 bytes a second, of the median; 0 when out of memory
  double share() const;          // of the copy's bandwidth
  double tflops() const;         // 10^12 FLOP a second, as the account counts
  // The roofline's time over the measured time: the account's bytes at the copy's bandwidth or its
  // FLOPs at the product's rate, whichever takes longer. 0 without an account.
  double roofline_share() const;
};

// Runs the ceilings (the copy and the matrix products), then every kernel in every variant, on the
// current Context's device. Calls `on_row` after each. Out of memory gives a row; other errors end
// the benchmark. Skips unknown names in `kernels` and `variants`.
std::vector<KernelRow> bench_kernels(const KernelBenchOptions& options,
                                     const std::function<void(const KernelRow&)>& on_row = {});

// In JSON and CSV the keys are those of torch_kernels.py and more.
TableRow table_row(const KernelRow& row);

}  // namespace quern
