// The first step of a kind takes the memory of its batch besides that of its work.
#include "train/training_step.h"

#include <gtest/gtest.h>

#include "config/config.h"
#include "run/make_optimizer.h"
#include "support/training.h"
#include "tensor/factory.h"

namespace quern {
namespace {

// Without a GPU: only later steps are captured.
TEST(TrainingStep, AFirstStepWithoutMemoryIsTriedAgain) {
  Config config;
  static_cast<ModelConfig&>(config.model) = testing_support::tiny_model();
  Context context(kCpu, 1);
  const ContextScope scope(context);
  Allocator& allocator = *context.allocator(kCpu);
  std::vector<float> expected;
  for (int64_t k = -1, left = -1; left < 0; ++k) {  // -1: no failure
    SCOPED_TRACE(k);
    ModelInstance instance(config.model, config.compute, InitScheme::normal, true, 1);
    const auto optimizer = make_optimizer(instance.arena, config);
    TrainingStep step(instance, *optimizer, true);
    const Tensor batch = zeros({1, config.model.context}, DType::i32);
    optimizer->set_learning_rate(1e-2);
    allocator.fail_after(k);
    try {
      step.run(batch, batch, {});
      left = allocator.fail_after(-1);
    } catch (const OutOfMemory&) {
      step.run(batch, batch, {});
    }
    const std::vector<float> weights = instance.arena.exact_values().to_vector<float>();
    if (k < 0) expected = weights;
    EXPECT_TRUE(weights == expected);
  }
}

}  // namespace
}  // namespace quern
