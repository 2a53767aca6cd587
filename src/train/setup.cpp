#include "train/setup.h"

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "kernels/cpu/threads.h"
#include "tensor/cuda_runtime.h"
#include "tensor/gemm_table.h"

namespace quern {

Device choose_device(DeviceChoice choice) {
  const Device gpu{DeviceType::cuda, 0};
  if (choice == DeviceChoice::cpu) return kCpu;
  if (choice == DeviceChoice::cuda) return gpu;  // Context says what is missing
  return cuda::device_count() > 0 ? gpu : kCpu;
}

bool use_gemm_table_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw UsageError(cat("gemm_table: ", path, " cannot be read"));
  try {
    return use_gemm_table(std::string(std::istreambuf_iterator<char>(in), {}));
  } catch (const Error& error) {
    fail(cat(path, ": ", error.what()));
  }
}

std::unique_ptr<Context> make_context(const ComputeSection& compute, uint64_t seed) {
  if (compute.threads > 0) kernels::cpu::set_thread_count(static_cast<int>(compute.threads));
  auto context = std::make_unique<Context>(choose_device(compute.device), seed);
  if (compute.precision == Precision::tf32) context->matmul_math = kernels::MatmulMath::tf32;
  context->split_products = compute.fp32_products == Fp32Products::split;
  context->deterministic = compute.deterministic;
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

AdamWOptions adamw_options(const Config& config) {
  const OptimizerSection& o = config.optimizer;
  return {o.beta1, o.beta2, o.eps, o.weight_decay, o.clip, config.compute.kernels};
}

ModelInstance::ModelInstance(const ModelConfig& config, const ModelOptions& options,
                             InitScheme init, bool training, uint64_t seed)
    : model(config, options, init), arena(model, {options.precision, training, seed}) {}

}  // namespace quern
