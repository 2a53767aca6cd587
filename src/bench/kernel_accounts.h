// Reads, writes and FLOPs of each benchmarked kernel, counted by hand: the account behind a
// roofline (Williams, Waterman and Patterson, 2009).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace quern {

// Elements of one dtype that a kernel reads or writes.
struct Elements {
  int64_t count;
  DType dtype;
};

// The sum over a variant's kernels. Every operand of a kernel counts once; a broadcast operand
// counts at its own size. An exponential, a root, a quotient and a comparison are one FLOP each.
struct KernelAccount {
  int64_t reads = 0, writes = 0;  // elements
  int64_t bytes = 0;              // of reads and writes
  int64_t written_bytes = 0;
  int64_t flops = 0;

  double intensity() const;  // FLOP a byte
};

// The account of a case of kernel_families(): `variant` is naive, online or fused; shape and dtype
// are the case's. None for kernels without an account: separate backward passes, dropout,
// add_layernorm_fwd, embedding_bwd, global_norm, and the naive quantize and quantize_swiglu_bwd.
std::optional<KernelAccount> account_of(const std::string& kernel, const std::string& variant,
                                        const std::vector<int64_t>& shape, DType dtype);

// A product of two n x n matrices.
KernelAccount matmul_account(int64_t n, DType dtype);

}  // namespace quern
