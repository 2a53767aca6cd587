// The Context that a configuration asks for.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "tensor/context.h"

namespace quern {

// use_gemm_table() of a file. Throws UsageError when it cannot be read, and an Error with its path
// when it is not such a table.
bool use_gemm_table_file(const std::string& path);

// The configured device; automatic: the GPU with this index when the build and the machine have
// GPUs, else the CPU.
Device choose_device(DeviceChoice choice, int gpu = 0);

// Throws UsageError unless products under `precision` run on a device with these traits.
void check_precision(Precision precision, Device device, const kernels::cuda::DeviceTraits& traits);

// A Context of the configured device and of the OpOptions in [compute], with the configured or
// shipped GEMM table, and the CPU's threads set. Throws UsageError for another GPU's table.
std::unique_ptr<Context> make_context(const ComputeSection& compute, uint64_t seed, int gpu = 0);

}  // namespace quern
