// The Context that a configuration asks for.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "tensor/context.h"

namespace quern {

// The configured device; automatic: the first GPU when the build and the machine have one, else the
// CPU.
Device choose_device(DeviceChoice choice);

// use_gemm_table() of a file. Throws UsageError when it cannot be read, and an Error with its path
// when it is not such a table.
bool use_gemm_table_file(const std::string& path);

// Sets what ops read of [compute]: how FP32 products are computed, and determinism.
void set_switches(Context& context, const ComputeSection& compute);

// A Context of that device, with FP32 products by TF32 under precision = tf32, the GEMM table that
// is configured or shipped, and the CPU's threads set. Throws UsageError for another GPU's table.
std::unique_ptr<Context> make_context(const ComputeSection& compute, uint64_t seed);

}  // namespace quern
