#include "train/tune.h"

#include <chrono>
#include <filesystem>

#include "autograd/tape.h"
#include "io/atomic_file.h"
#include "run/make_context.h"
#include "run/model_instance.h"
#include "train/training_step.h"

namespace quern {

TuneResult tune_gemms(const Config& config, const std::string& path) {
  if (!Context::current().device().is_cuda()) {
    throw UsageError(
        "tune: the device is the CPU, expected a GPU: only cuBLASLt has algorithms to "
        "choose from");
  }
  measure_gemm_algorithms();  // empties the table, which held the shipped one
  if (std::filesystem::exists(path) && !use_gemm_table_file(path)) {
    throw UsageError(cat("tune: ", path,
                         " was made on another GPU or with another version of "
                         "cuBLASLt; give another file"));
  }
  write_file_atomically(path, gemm_table());  // fails before the measurements instead of after them
  const auto start = std::chrono::steady_clock::now();
  ModelInstance instance(config.model, config.compute, config.model.init, true,
                         static_cast<uint64_t>(config.train.seed));
  const auto [tokens, targets] = random_batch(config.model, config.train.batch);
  forward_backward(instance, tokens, targets, 1);
  const NoGrad no_grad;
  instance.model.loss(tokens, targets);
  Context::current().synchronize();
  write_file_atomically(path, gemm_table());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {gemm_table_size(), measured_products(), elapsed.count()};
}

}  // namespace quern
