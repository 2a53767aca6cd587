#include "train/setup.h"

#include "base/error.h"
#include "kernels/cpu/threads.h"
#include "tensor/cuda_runtime.h"

namespace quern {

Device choose_device(DeviceChoice choice) {
  const Device gpu{DeviceType::cuda, 0};
  if (choice == DeviceChoice::cpu) return kCpu;
  if (choice == DeviceChoice::cuda) return gpu;  // Context says what is missing
  return cuda::device_count() > 0 ? gpu : kCpu;
}

std::unique_ptr<Context> make_context(const ComputeSection& compute, uint64_t seed) {
  if (compute.threads > 0) kernels::cpu::set_thread_count(static_cast<int>(compute.threads));
  auto context = std::make_unique<Context>(choose_device(compute.device), seed);
  if (compute.precision == Precision::tf32) context->matmul_math = kernels::MatmulMath::tf32;
  return context;
}

ModelInstance::ModelInstance(const ModelConfig& config, const ModelOptions& options,
                             InitScheme init, bool training, uint64_t seed)
    : model(config, options, init), arena(model, {options.precision, training, seed}) {}

}  // namespace quern
