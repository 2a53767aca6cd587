// Each allocation of a step, a generation, a load, an import and a training fails once: the error
// says so, nothing leaks, and the process goes on to the bits of a run without failures.
#include "generate/generate.h"
#include "hf/huggingface.h"
#include "run/hf_model.h"
#include "run/make_context.h"
#include "run/make_optimizer.h"
#include "run/saved_model.h"
#include "support/failing_allocations.h"
#include "support/heap.h"
#include "support/sanitized.h"
#include "tensor/factory.h"
#include "train/training_step.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

using namespace testing_support;

struct Training {
  ModelInstance instance;
  std::unique_ptr<Optimizer> optimizer;
  TrainingStep step;
  Tensor batch;

  explicit Training(const Config& config)
      : instance(config.model, config.compute, InitScheme::normal, true, 1),
        optimizer(make_optimizer(instance.arena, config)),
        step(instance, *optimizer, false),
        batch(zeros({1, 8}, DType::i32)) {
    optimizer->set_learning_rate(1e-2);
    fill(batch, 7.0);
  }
  void run(int64_t parts = 1) {
    for (int64_t i = 0; i < parts; ++i) step.run(batch, batch, {i, parts});
  }
  std::vector<float> weights() const { return instance.arena.exact_values().to_vector<float>(); }
};

// Out of memory before there is a run folder, a snapshot goes to the current one.
class AllocationFailure : public TrainerTest {
 protected:
  AllocationFailure() { fs::current_path(folder_); }
  ~AllocationFailure() override { fs::current_path(before_); }

 private:
  fs::path before_ = fs::current_path();
};

TEST_F(AllocationFailure, OfAStepLeavesTheWeightsAndTheNextStepHasTheSameBits) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
    for (const KernelKind kernels : {KernelKind::fused, KernelKind::naive}) {
      for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8}) {
        if (kSanitized && precision == Precision::bf16) continue;  // fp8 does what it does, too
        SCOPED_TRACE(cat("optimizer ", static_cast<int>(kind), ", kernels ",
                         static_cast<int>(kernels), ", precision ", static_cast<int>(precision)));
        Config config;
        static_cast<ModelConfig&>(config.model) = {
            .vocab_size = 40, .context = 8, .d_model = 16, .d_ff = 24, .layers = 1, .heads = 2};
        config.compute.kernels = kernels;
        config.compute.precision = precision;
        config.optimizer.kind = kind;
        Context context(kCpu, 1);
        const ContextScope scope(context);
        Training whole(config);
        whole.run();
        const std::vector<float> first = whole.weights();
        whole.run();

        auto failing = std::make_unique<Training>(config);
        failing->run();
        int64_t torn = 0;
        const int64_t failures = fail_each([&] { failing->run(); },
                                           [&] {
                                             if (!failing->optimizer->torn()) {
                                               EXPECT_TRUE(failing->weights() == first);
                                               return;
                                             }
                                             ++torn;  // in the middle of an update
                                             failing = std::make_unique<Training>(config);
                                             failing->run();
                                           });
        EXPECT_GT(failures, 10);
        EXPECT_LT(torn, failures);
        if (kernels == KernelKind::fused && kind == OptimizerKind::adamw) {
          EXPECT_EQ(torn, 0);  // all its memory is there beforehand
        }
        EXPECT_EQ(failing->step.loss().item(), whole.step.loss().item());
        EXPECT_TRUE(failing->weights() == whole.weights());
      }
    }
  }
}

TEST_F(AllocationFailure, OfAStepOfTwoMicroBatches) {
  Config config;
  static_cast<ModelConfig&>(config.model) = {
      .vocab_size = 40, .context = 8, .d_model = 16, .d_ff = 24, .layers = 1, .heads = 2};
  Context context(kCpu, 1);
  const ContextScope scope(context);
  Training whole(config), failing(config);
  for (int i = 0; i < 2; ++i) whole.run(2);
  failing.run(2);
  EXPECT_GT(fail_each([&] { failing.run(2); }, [] {}), 10);
  EXPECT_FALSE(failing.optimizer->torn());
  EXPECT_TRUE(failing.weights() == whole.weights());
}

TEST_F(AllocationFailure, OfALoadAndAGeneration) {
  Context context(kCpu, 1);
  const ContextScope scope(context);
  const fs::path run = folder_ / "imported";
  import_model(golden_folder() / "gqa_tied", run);
  std::vector<int32_t> tokens;
  const auto load_and_generate = [&] {
    const SavedModel saved = load_saved_model(run, true, {});
    SampleSection options;
    options.tokens = 5;
    tokens = generate(saved.instance->model, {1, 2, 3}, options).tokens;
  };
  load_and_generate();
  const std::vector<int32_t> expected = tokens;
  EXPECT_EQ(expected.size(), 5u);
  tokens.clear();
  EXPECT_GT(fail_each(load_and_generate, [] {}), 20);
  EXPECT_TRUE(tokens == expected);
}

// An import takes no tensors: what fails is operator new. Smaller calls than these come from memory
// that the process has, and the JSON library makes some in destructors.
TEST_F(AllocationFailure, OfAnImportLeavesNoneOrAWholeOne) {
  const fs::path golden = golden_folder() / "gqa_tied", whole = folder_ / "whole";
  import_model(golden, whole);
  const auto weights = [](const fs::path& run) {
    return read_file(checkpoint_path(run / "checkpoints", 0) / "model.safetensors");
  };
  const fs::path run = folder_ / "imported";
  int64_t failures = 0;
  for (int64_t k = 0;; ++k) {
    fail_new_after(k, 1024);
    try {
      import_model(golden, run);
      if (fail_new_after(-1) >= 0) break;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(fail_new_after(-1), -1);
      ++failures;
    } catch (const Error& error) {  // of a stream or a library that has no memory
      EXPECT_EQ(fail_new_after(-1), -1) << error.what();
      ++failures;
    }
    if (fs::exists(run)) {
      EXPECT_TRUE(weights(run) == weights(whole)) << k;
    }
    fs::remove_all(run);
  }
  EXPECT_GT(failures, 10);
  EXPECT_TRUE(weights(run) == weights(whole));
}

TEST_F(AllocationFailure, OfATrainingEndsItAndItResumes) {
  expect_survives_failed_allocations(config(), kCpu, folder_, 47);
}

}  // namespace
}  // namespace quern
