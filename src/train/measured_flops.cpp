#include "train/measured_flops.h"

#include <algorithm>
#include <chrono>

#include "autograd/ops/matmul.h"
#include "autograd/tape.h"
#include "tensor/factory.h"

namespace quern {

double measure_peak_flops(Precision precision) {
  Context& context = Context::current();
  constexpr int64_t kSize = 8192;
  const bool half = has_bf16_activations(precision);
  const NoGrad no_grad;
  const Tensor a = normal({kSize, kSize}, 0.0, 1.0, half ? DType::bf16 : DType::f32);
  const Tensor b = normal({kSize, kSize}, 0.0, 1.0, a.dtype());
  double best = 0.0;
  for (int repeat = 0; repeat < 4; ++repeat) {  // the first one also warms up
    context.synchronize();
    const auto start = std::chrono::steady_clock::now();
    matmul(a, b);
    context.synchronize();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(kSize * kSize * kSize) / elapsed.count());
  }
  return best;
}

double measure_peak_flops(Precision precision, const TrainingStep& step) {
  if (!Context::current().device().is_cuda()) return 0.0;
  try {
    return measure_peak_flops(precision);
  } catch (const OutOfMemory&) {
    try {
      const PoolScope memory = step.idle_memory();
      return measure_peak_flops(precision);
    } catch (const OutOfMemory&) {
      return 0.0;
    }
  }
}

}  // namespace quern
