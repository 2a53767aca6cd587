// The optimizer that docs/adding_an_optimizer.md adds, trained by the real training step, saved and
// resumed; and a check that the page shows the real code from here and from src/.
#include <gtest/gtest.h>

#include "autograd/ops/binary.h"
#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "kernels/cpu/with_weights.h"
#include "optim/optimizer.h"
#include "run/train_state.h"
#include "support/page.h"
#include "support/training.h"
#include "tensor/factory.h"
#include "train/training_step.h"

namespace quern {
namespace {

using namespace testing_support;

// m = mu m + clip g; weight -= lr m. Does nothing at all when state->finite is 0.
void sgd(const kernels::WeightArrays& weights, float* m, const float* grad, int64_t n, float mu,
         const kernels::StepState* state) {
  if (state->finite == 0) return;
  kernels::cpu::with_weights(weights, 0, [&](auto here) {
    for (int64_t i = 0; i < n; ++i) {
      m[i] = mu * m[i] + state->clip * grad[i];
      here.set(i, here.get(i) - state->lr * m[i]);
    }
  });
}

// SGD with momentum.
class Sgd : public Optimizer {
 public:
  Sgd(ParameterArena& arena, const StepGuard& guard, double mu)
      : Optimizer(arena, guard), mu_(mu), momentum_(zeros_like_gradients("sgd momentum")) {}

  const char* name() const override { return "sgd"; }
  std::vector<OptimizerBuffer> buffers() const override {
    return {{"momentum.", momentum_, arena().trainable_slices()}};
  }

 private:
  void fused_update() override {
    sgd(arena().weight_arrays(), momentum_.data<float>(), arena().grads().data<float>(),
        arena().trainable(), static_cast<float>(mu_), state_data());
  }

  void naive_update(const Tensor& values, double clip, const kernels::StepState& now) override {
    const NoGrad no_grad;
    const Tensor trained = values.slice(0, 0, arena().trainable());
    copy(momentum_, add(scale(momentum_, mu_), scale(arena().grads(), clip)).value());
    copy(trained, add(trained, scale(momentum_, -now.lr)).value());
  }

  double mu_;
  Tensor momentum_;
};

// A model that Sgd trains on one batch.
struct Training {
  explicit Training(KernelKind kernels, Precision precision = Precision::fp32)
      : instance(tiny_model(), options_of(precision), InitScheme::normal, true, 1),
        optimizer(instance.arena, {.kernels = kernels}, 0.9),
        step(instance, optimizer, false) {
    optimizer.set_learning_rate(0.1);
    tokens = random_integers({2, 48}, 300);
  }
  static ModelOptions options_of(Precision precision) {
    ModelOptions options;
    options.precision = precision;
    return options;
  }
  double run(int steps) {
    for (int i = 0; i < steps; ++i) step.run(tokens, tokens, {});
    return step.loss().item();
  }

  ModelInstance instance;
  Sgd optimizer;
  TrainingStep step;
  Tensor tokens;
};

TEST(CustomOptimizer, TrainsAndAgreesWithItsTwin) {
  Context context(kCpu, 1);
  const ContextScope scope(context);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Training fused(KernelKind::fused, precision), naive(KernelKind::naive, precision);
    naive.tokens = fused.tokens;
    const double before = fused.run(1);
    EXPECT_NEAR(naive.run(1), before, 1e-6);
    const double after = fused.run(20);
    EXPECT_LT(after, before - 1.0);
    // 20 steps of FP32 roundings; one may round a weight's copy to the other neighbour.
    EXPECT_NEAR(naive.run(20), after, precision == Precision::fp32 ? 1e-4 : 1e-2);
  }
}

TEST(CustomOptimizer, ResumesBitForBit) {
  const TemporaryFolder folder;
  Training whole(KernelKind::fused), resumed(KernelKind::fused);
  resumed.tokens = whole.tokens;
  whole.run(3);
  TrainState state;
  state.iteration = state.step = 3;
  state.model = tiny_model();
  const auto path =
      save_train_state(folder / "checkpoints", whole.instance.arena, whole.optimizer, state);
  load_train_state(path, resumed.instance.arena, tiny_model(), resumed.optimizer);
  EXPECT_EQ(whole.run(3), resumed.run(3));
  EXPECT_EQ(whole.instance.arena.exact_values().to_vector<float>(),
            resumed.instance.arena.exact_values().to_vector<float>());
}

TEST(CustomOptimizer, ThePageShowsTheRealCode) {
  EXPECT_EQ(pieces_of_page("adding_an_optimizer.md"), 5);
}

}  // namespace
}  // namespace quern
