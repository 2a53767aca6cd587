#include "run/make_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/config_table.h"
#include "io/small_file.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/threads.h"
#include "tensor/cuda_runtime.h"
#include "tensor/gemm_table.h"

namespace quern {

Device choose_device(DeviceChoice choice, int gpu) {
  const Device device{DeviceType::cuda, gpu};
  if (choice == DeviceChoice::cpu) return kCpu;
  if (choice == DeviceChoice::cuda) return device;  // Context throws if it is missing
  return cuda::device_count() > 0 ? device : kCpu;
}

bool use_gemm_table_file(const std::string& path) {
  const std::optional<std::string> text = read_if_there(path);
  if (!text) throw UsageError(cat("gemm_table: ", path, " cannot be read: there is no such file"));
  try {
    return use_gemm_table(*text);
  } catch (const Error& error) {
    fail(cat(path, ": ", error.what()));
  }
}

namespace {

void choose_cpu_level(const ComputeSection& compute) {
  if (compute.cpu_level == CpuLevel::automatic) return kernels::cpu::use_best_level();
  Config config;
  config.compute = compute;
  const std::string name = value_text(config, "cpu_level");  // that of kernels/cpu/level.h, too
  const std::vector<std::string> levels = kernels::cpu::levels();
  if (std::ranges::count(levels, name) == 0) {
    throw UsageError(
        fmt::format("cpu_level: found {}, expected auto; this build has {} on this processor", name,
                    fmt::join(levels, ", ")));
  }
  kernels::cpu::use_level(name);
}

}  // namespace

void check_precision(Precision precision, Device device,
                     const kernels::cuda::DeviceTraits& traits) {
  if (precision != Precision::fp8 || !device.is_cuda() || traits.hopper_code) return;
  throw UsageError(
      cat("precision is fp8, which needs a GPU of compute capability 9.0 (H100, H200) ",
          "and a build with its code; found another in ", device, "; choose precision = bf16"));
}

std::unique_ptr<Context> make_context(const ComputeSection& compute, uint64_t seed, int gpu) {
  if (compute.threads > 0) kernels::cpu::set_thread_count(static_cast<int>(compute.threads));
  choose_cpu_level(compute);
  auto context = std::make_unique<Context>(choose_device(compute.device, gpu), seed);
  check_precision(compute.precision, context->device(), context->traits());
  context->options = compute;
  context->allocator(context->device())->set_limit(compute.memory_limit << 20);
  const ContextScope scope(*context);
  if (compute.gemm_table.empty()) {
    use_shipped_gemm_table();
  } else if (context->device().is_cuda() && !use_gemm_table_file(compute.gemm_table)) {
    throw UsageError(cat("gemm_table: ", compute.gemm_table,
                         " was made on another GPU or with another version of cuBLASLt; make one "
                         "here with `quern tune`"));
  }
  return context;
}

}  // namespace quern
