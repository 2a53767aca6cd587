// A training keeps its bits when it runs again, with other numbers of threads, with recomputation,
// and when it resumes from any step.
#include <gtest/gtest.h>

#include <algorithm>

#include "bench/precision_scope.h"
#include "kernels/cpu/threads.h"
#include "support/sanitized.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

using namespace testing_support;

// The fused kernels and flash attention, or their naive twins.
enum class Path { fused, naive };

using Mode = std::tuple<Precision, Path, int64_t /*accumulate*/, double /*dropout*/, OptimizerKind,
                        MomentType>;

class BitEquality : public TrainerTest, public testing::WithParamInterface<Mode> {
 protected:
  ~BitEquality() override { kernels::cpu::set_thread_count(threads_); }

  Config config(const Mode& mode, int64_t steps) const {
    Config c = TrainerTest::config("reference");
    const auto& [precision, path, accumulate, dropout, optimizer, moments] = mode;
    c.compute.precision = precision;
    if (path == Path::naive) {
      c.compute.attention = AttentionKind::naive;
      c.compute.kernels = KernelKind::naive;
    }
    c.compute.threads = 2;
    c.compute.dropout = dropout;
    c.train.accumulate = accumulate;
    c.train.steps = steps;
    c.train.keep = static_cast<int>(steps);
    c.optimizer.kind = optimizer;
    c.optimizer.moments = moments;
    return c;
  }

  // Losses of the training after step `from`, and its last checkpoint.
  static TrainingResult outcome(const Config& c, int64_t from = 0) {
    Recorded recorded;
    train(c, recorded);
    EXPECT_EQ(static_cast<int64_t>(recorded.losses().size()), c.train.steps - from);
    TrainingResult outcome = outcome_of(c, recorded);
    outcome.validations.clear();  // a resumed run makes up for that of its checkpoint
    return outcome;
  }
  TrainingResult outcome_in(const std::string& folder, Config c) const {
    c.run.out = (folder_ / folder).string();
    return outcome(c);
  }

  // Goes back to the reference's checkpoint of `step` and on to its end, where it saves again.
  static TrainingResult resumed(Config c, int64_t step) {
    c.train.checkpoint_every = 0;
    c.run.resume = checkpoint_path(fs::path(c.run.out) / "checkpoints", step).string();
    return outcome(c, step);
  }
  static TrainingResult after(TrainingResult whole, int64_t step) {
    whole.losses.erase(whole.losses.begin(), whole.losses.begin() + step);
    return whole;
  }

 private:
  const int threads_ = kernels::cpu::thread_count();
};

TEST_P(BitEquality, OfEveryMode) {
  constexpr int64_t kSteps = 6;
  Config c = config(GetParam(), kSteps);
  c.train.checkpoint_every = 4;
  const TrainingResult reference = outcome(c);

  if (!kSanitized) {
    EXPECT_EQ(outcome_in("again", c), reference);
    for (const int threads : {1, 3}) {
      Config changed = c;
      changed.compute.threads = threads;
      EXPECT_EQ(outcome_in(cat("threads", threads), changed), reference) << threads << " threads";
    }
  }
  for (const Recompute recompute :
       {Recompute::none, Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
    Config changed = c;
    changed.compute.recompute = recompute;
    changed.compute.segment = 2;
    EXPECT_EQ(outcome_in(cat("recompute", static_cast<int>(recompute)), changed), reference)
        << "recompute " << static_cast<int>(recompute);
  }
  for (const Config& changed : offloaded(c)) {
    const int offload = static_cast<int>(changed.compute.offload);
    EXPECT_EQ(outcome_in(cat("offload", offload), changed), reference) << "offload " << offload;
  }
  EXPECT_EQ(resumed(c, 4), after(reference, 4));

  Config other = c;
  other.train.seed = 2;
  EXPECT_NE(outcome_in("seed", other), reference);
}

std::string name_of(const testing::TestParamInfo<Mode>& info) {
  const auto& [precision, path, accumulate, dropout, optimizer, moments] = info.param;
  return cat(name_of(precision), path == Path::naive ? "_naive" : "_fused", "_accumulate",
             accumulate, dropout > 0.0 ? "_dropout" : "",
             optimizer == OptimizerKind::muon ? "_muon" : "_adamw",
             moments == MomentType::bf16 ? "_moments" : "");
}

INSTANTIATE_TEST_SUITE_P(Modes, BitEquality,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Values(Path::fused, Path::naive),
                                          testing::Values(1, 2), testing::Values(0.0, 0.2),
                                          testing::Values(OptimizerKind::adamw,
                                                          OptimizerKind::muon),
                                          testing::Values(MomentType::fp32)),
                         name_of);

constexpr auto kAdamw = OptimizerKind::adamw, kMuon = OptimizerKind::muon;
constexpr auto kFp32Moments = MomentType::fp32, kBf16Moments = MomentType::bf16;

INSTANTIATE_TEST_SUITE_P(
    Fp8AndBf16Moments, BitEquality,
    testing::Values(Mode{Precision::fp8, Path::fused, 1, 0.2, kAdamw, kFp32Moments},
                    Mode{Precision::fp8, Path::fused, 2, 0.0, kMuon, kFp32Moments},
                    Mode{Precision::fp8, Path::naive, 2, 0.0, kAdamw, kFp32Moments},
                    Mode{Precision::fp32, Path::naive, 1, 0.0, kAdamw, kBf16Moments},
                    Mode{Precision::bf16, Path::fused, 2, 0.2, kAdamw, kBf16Moments},
                    Mode{Precision::bf16, Path::fused, 1, 0.0, kMuon, kBf16Moments}),
    name_of);

class BitEqualityOfResumes : public BitEquality {};

// From the last checkpoint to the first, each time to the end: a resume removes what it goes
// behind.
TEST_P(BitEqualityOfResumes, AtEveryStepOf40) {
  constexpr int64_t kSteps = 40;
  Config c = config(GetParam(), kSteps);
  c.train.checkpoint_every = 1;
  const TrainingResult reference = outcome(c);
  for (int64_t step = kSteps - 1; step > 0; --step) {
    ASSERT_EQ(resumed(c, step), after(reference, step)) << "from step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, BitEqualityOfResumes,
    testing::Values(Mode{Precision::fp32, Path::fused, 1, 0.0, kAdamw, kFp32Moments},
                    Mode{Precision::bf16, Path::fused, 2, 0.2, kMuon, kFp32Moments},
                    Mode{Precision::fp32, Path::fused, 1, 0.0, kAdamw, kBf16Moments}),
    name_of);

}  // namespace
}  // namespace quern
