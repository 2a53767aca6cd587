// Several ranks train the bits of one: weights, moments, losses and validations.
#include <exception>
#include <mutex>
#include <regex>
#include <set>
#include <thread>

#include "bench/precision_scope.h"
#include "dist/ranged_group.h"
#include "run/make_context.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr int64_t kMicroBatches = 12;  // of a step, over all ranks

// Trains on `ranks` threads; the first one's record. Throws the error that the others followed.
void train_on(int ranks, const Config& config, Recorded& recorded,
              const ThreadGroupOptions& options = {}, const std::atomic<bool>* stop_of_last = {},
              const std::string& data_of_last = {}) {
  auto group = thread_group(ranks, options);
  std::mutex mutex;
  std::exception_ptr first_error;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank, own = std::move(group[rank])] {
      try {
        const auto context = make_context(config.compute, 1);
        const ContextScope scope(*context);
        Recorded silent;
        const bool last = rank + 1 == group.size();
        Config own_config = config;
        if (last && !data_of_last.empty()) own_config.data.train = data_of_last;
        Trainer trainer(own_config, rank == 0 ? recorded : silent, own.get());
        trainer.run(last ? stop_of_last : nullptr);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
        own->abort("an error of the test");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

struct Mode {
  Precision precision;
  KernelKind kernels;
  double dropout = 0.0;
  OptimizerKind optimizer = OptimizerKind::adamw;
  Parallel parallel = Parallel::ddp;
  bool masks = false;  // the starts of documents, of which micro-batches have other numbers
  Recompute recompute = Recompute::none;
  MomentType moments = MomentType::fp32;
};

class Ranks : public TrainerTest, public testing::WithParamInterface<Mode> {
 protected:
  void expect_resumes(Parallel then, Parallel last) const;
  Config config_for(int ranks, const std::string& out, int64_t steps) const {
    Config c = config(out);
    const auto& [precision, kernels, dropout, optimizer, parallel, masks, recompute, moments] =
        GetParam();
    if (masks) c.data.train = write_documents(), c.data.validation = text().string();
    c.data.document_mask = masks;
    c.parallel.parallel = parallel;
    c.compute.precision = precision;
    c.compute.kernels = kernels;
    c.compute.dropout = dropout;
    c.model.layers = 5;
    c.compute.recompute = recompute;
    c.compute.segment = 3;
    c.optimizer.kind = optimizer;
    c.optimizer.moments = moments;
    c.train.batch = 2;
    c.train.accumulate = kMicroBatches / ranks;
    c.train.steps = steps;
    c.train.eval_every = 3;
    c.train.eval_batches = 7;  // other numbers on each rank
    return c;
  }

  TrainingResult outcome(int ranks, const Config& c) const {
    Recorded recorded;
    if (ranks == 1) {
      train(c, recorded);
    } else {
      train_on(ranks, c, recorded);
    }
    return outcome_of(c, recorded);
  }
};

// Two ranks, three under the strategy `then`, four under `last`, and one.
void Ranks::expect_resumes(Parallel then, Parallel last) const {
  const TrainingResult one = outcome(1, config_for(1, "one", 9));
  Recorded recorded;
  Config c = config_for(2, "several", 3);
  train_on(2, c, recorded);
  c.run.resume = c.run.out;
  const auto resume_on = [&](int ranks, int64_t steps, Parallel parallel) {
    c.train.steps = steps;
    c.train.accumulate = kMicroBatches / ranks;
    c.parallel.parallel = parallel;
    ranks == 1 ? static_cast<void>(train(c, recorded)) : train_on(ranks, c, recorded);
  };
  resume_on(3, 6, then);
  resume_on(4, 8, last);
  resume_on(1, 9, last);
  EXPECT_EQ(outcome_of(c, recorded).weights, one.weights);
  EXPECT_EQ(outcome_of(c, recorded).moments, one.moments);
  EXPECT_EQ(recorded.losses(), one.losses);
}

TEST_P(Ranks, TrainTheBitsOfOne) {
  constexpr int64_t kSteps = kSanitized ? 3 : 5;
  const TrainingResult one = outcome(1, config_for(1, "one", kSteps));
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  for (int ranks = 2; ranks <= (kSanitized ? 3 : 4); ++ranks) {
    Config c = config_for(ranks, cat("ranks", ranks), kSteps);
    if (ranks == 3) {  // nor does it matter where their state lies
      const bool bf16 = has_bf16_activations(c.compute.precision);
      c.compute.offload = bf16 ? Offload::optimizer : Offload::moments;
      c.compute.offload_activations =
          c.compute.recompute == Recompute::blocks || c.compute.kernels == KernelKind::fused;
    }
    const TrainingResult several = outcome(ranks, c);
    EXPECT_EQ(several.losses, one.losses) << ranks;
    EXPECT_EQ(several.validations, one.validations) << ranks;
    EXPECT_TRUE(several == one) << ranks;
  }
}

std::string name_of(const testing::TestParamInfo<Mode>& info) {
  const auto& [precision, kernels, dropout, optimizer, parallel, masks, recompute, moments] =
      info.param;
  return cat(name_of(parallel), '_', name_of(precision),
             kernels == KernelKind::naive ? "_naive" : "_fused", dropout > 0.0 ? "_dropout" : "",
             optimizer == OptimizerKind::muon ? "_muon" : "_adamw", masks ? "_masks" : "",
             recompute == Recompute::blocks ? "_blocks" : "",
             moments == MomentType::bf16 ? "_moments" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Modes, Ranks,
    testing::Values(
        Mode{Precision::fp32, KernelKind::fused}, Mode{Precision::fp32, KernelKind::naive},
        Mode{Precision::bf16, KernelKind::fused, 0.2},
        Mode{Precision::bf16, KernelKind::fused, 0.0, OptimizerKind::muon},
        Mode{Precision::bf16, KernelKind::fused, 0.0, OptimizerKind::muon, Parallel::zero1},
        Mode{Precision::bf16, KernelKind::naive, 0.0, OptimizerKind::muon, Parallel::zero1},
        Mode{Precision::fp32, KernelKind::fused, 0.0, OptimizerKind::muon, Parallel::zero2},
        Mode{Precision::bf16, KernelKind::fused, 0.0, OptimizerKind::muon, Parallel::fsdp},
        Mode{Precision::fp32, KernelKind::naive, 0.0, OptimizerKind::muon, Parallel::fsdp},
        Mode{Precision::fp32, KernelKind::fused, 0.2, OptimizerKind::adamw, Parallel::zero1},
        Mode{Precision::fp32, KernelKind::naive, 0.0, OptimizerKind::adamw, Parallel::zero1},
        Mode{Precision::bf16, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::zero1},
        Mode{Precision::bf16, KernelKind::naive, 0.0, OptimizerKind::adamw, Parallel::zero1},
        Mode{Precision::fp32, KernelKind::fused, 0.2, OptimizerKind::adamw, Parallel::zero2},
        Mode{Precision::bf16, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::zero2},
        Mode{Precision::fp32, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::fsdp},
        Mode{Precision::bf16, KernelKind::fused, 0.2, OptimizerKind::adamw, Parallel::fsdp},
        Mode{Precision::bf16, KernelKind::naive, 0.0, OptimizerKind::adamw, Parallel::fsdp},
        Mode{Precision::fp32, KernelKind::fused, 0.1, OptimizerKind::adamw, Parallel::fsdp, false,
             Recompute::blocks},
        Mode{Precision::fp32, KernelKind::naive, 0.0, OptimizerKind::adamw, Parallel::ddp, true},
        Mode{Precision::bf16, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::zero1, true},
        Mode{Precision::fp8, KernelKind::fused, 0.2}, Mode{Precision::fp8, KernelKind::naive},
        Mode{Precision::fp8, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::zero2},
        Mode{Precision::fp8, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::fsdp, false,
             Recompute::blocks},
        Mode{Precision::bf16, KernelKind::fused, 0.2, OptimizerKind::adamw, Parallel::zero1, false,
             Recompute::none, MomentType::bf16},
        Mode{Precision::fp32, KernelKind::fused, 0.0, OptimizerKind::adamw, Parallel::fsdp, false,
             Recompute::none, MomentType::bf16},
        Mode{Precision::fp32, KernelKind::naive, 0.0, OptimizerKind::adamw, Parallel::zero2, false,
             Recompute::none, MomentType::bf16}),
    name_of);

class RanksForHundredSteps : public Ranks {
 protected:
  Config hundred_steps(int ranks, const std::string& out) const {
    Config c = config_for(ranks, out, 100);
    c.model.layers = 3;
    c.train.accumulate = 4 / ranks;
    return c;
  }
};

TEST_P(RanksForHundredSteps, TrainTheBitsOfOne) {
  const TrainingResult one = outcome(1, hundred_steps(1, "one"));
  EXPECT_TRUE(outcome(2, hundred_steps(2, "two")) == one);
  EXPECT_TRUE(outcome(4, hundred_steps(4, "four")) == one);
}

std::vector<Mode> every_strategy() {
  std::vector<Mode> modes;
  for (const Parallel parallel :
       {Parallel::ddp, Parallel::zero1, Parallel::zero2, Parallel::fsdp}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      modes.push_back({precision, KernelKind::fused, 0.1, OptimizerKind::adamw, parallel});
    }
  }
  modes.push_back({Precision::bf16, KernelKind::fused, 0.1, OptimizerKind::muon, Parallel::zero1});
  return modes;
}

INSTANTIATE_TEST_SUITE_P(Modes, RanksForHundredSteps, testing::ValuesIn(every_strategy()), name_of);

class RanksOfOneMode : public Ranks {};

// As copies on the disks of several machines may be: of other lengths, or with other tokens.
TEST_P(RanksOfOneMode, OtherDataOnOneRankIsAnErrorOnAll) {
  const Config c = config_for(3, "several", 3);
  const std::string whole = read_file(c.data.train);
  std::string changed = whole;
  changed[0] = changed[0] == 'a' ? 'b' : 'a';
  for (const std::string& data : {whole.substr(0, whole.size() / 2), changed}) {
    const fs::path other = folder_ / "other.txt";
    write_file(other, data);
    Recorded recorded;
    expect_error([&] { train_on(3, c, recorded, {}, nullptr, other.string()); },
                 {"ranks 0 and 2 differ in their data: ", " tokens, checksum ", " to train on, ",
                  " on rank 0; ", " on rank 2"});
    EXPECT_FALSE(fs::exists(c.run.out));
  }
}

TEST_P(RanksOfOneMode, AResumedRunMayHaveOtherRanksAndAnotherStrategy) {
  const Parallel own = GetParam().parallel;
  expect_resumes(shares_out(own) ? Parallel::ddp : Parallel::zero1,
                 own == Parallel::fsdp ? Parallel::zero2 : Parallel::fsdp);
}

// The best checkpoint is gone, so the ranks must agree that the next validation is the best.
TEST_P(RanksOfOneMode, GoingBackWithoutTheBestCheckpoint) {
  Config c = config_for(2, "several", 9);
  c.train.eval_every = 3;
  c.train.checkpoint_every = 3;
  c.train.keep = 10;
  Recorded recorded;
  train_on(2, c, recorded);
  const fs::path checkpoints = fs::path(c.run.out) / "checkpoints";
  const fs::path copy = checkpoints / "mine", third = checkpoint_path(checkpoints, 3);
  fs::copy(third, copy, fs::copy_options::recursive);
  fs::remove_all(third);
  c.run.resume = copy.string();
  c.train.steps = 4;
  Recorded again;
  train_on(2, c, again);
  EXPECT_EQ(again.steps.front().step, 4);
  EXPECT_TRUE(fs::exists(third)) << "the copy's step is saved again, as the best so far";
}

// On a GPU a failed collective returns, and check() tells of it: by then garbage may have reached
// the weights.
TEST_F(TrainerTest, WeightsOfAFailedSumAreNotSaved) {
  class FailingLater : public RangedGroup {
   public:
    using RangedGroup::RangedGroup;
    void check() override {
      if (fails) throw CommunicationError("rank 1 hangs");
      RangedGroup::check();
    }
    bool fails = false;
  };
  struct Watching : Recorded {
    FailingLater* group = nullptr;
    void on_step(const StepMetrics& m) override {
      Recorded::on_step(m);
      group->fails = m.step == 3;
    }
  };
  Config c = config("run");
  c.parallel = {.parallel = Parallel::ddp, .ranks = 2};
  auto group = thread_group(2);
  std::thread other([&c, own = std::move(group[1])] {
    const auto context = make_context(c.compute, 1);
    const ContextScope scope(*context);
    Recorded silent;
    EXPECT_THROW(Trainer(c, silent, own.get()).run(nullptr), CommunicationError);
  });
  FailingLater first(*group[0]);
  Watching recorded;
  recorded.group = &first;
  std::string error;
  try {
    Trainer(c, recorded, &first).run(nullptr);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  first.abort("an error of the test");
  other.join();
  EXPECT_EQ(error, "rank 1 hangs");
  EXPECT_EQ(recorded.losses().size(), 3u);
  EXPECT_FALSE(latest_checkpoint(fs::path(c.run.out) / "checkpoints"));
}

// One rank may open its data or read the weights of --from for longer than the limit.
TEST_F(TrainerTest, RanksWaitPatientlyForDataAndWeights) {
  class Watched : public RangedGroup {
   public:
    using RangedGroup::RangedGroup;
    void set_patience(std::chrono::milliseconds patience) override {
      RangedGroup::set_patience(patience);
      patient_ = patience.count() > 0;
    }
    void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
                const char* what, Stream stream) override {
      if (patient_) awaited.insert(what);
      RangedGroup::gather(data, own, slices, width, what, stream);
    }
    std::set<std::string> awaited;

   private:
    bool patient_ = false;
  };
  Config c = config("first");
  c.train.steps = 1;
  Recorded recorded;
  train(c, recorded);
  c.model.from = std::exchange(c.run.out, (folder_ / "second").string());
  const auto alone = thread_group(1);
  Watched group(*alone[0]);
  const auto context = make_context(c.compute, 1);
  const ContextScope scope(*context);
  const Trainer trainer(c, recorded, &group);
  EXPECT_EQ(group.awaited, (std::set<std::string>{"their data", "the reading of the weights"}));
}

TEST_F(TrainerTest, MuonUnderDdpNeedsEqualProcessors) {
  class OtherProcessor : public RangedGroup {  // of rank 1, as both ranks hear
   public:
    using RangedGroup::RangedGroup;
    void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                   Stream stream) override {
      RangedGroup::broadcast(to, from, bytes, root, what, stream);
      const bool changes = root == 1 && std::string(what).starts_with("their processors");
      if (changes) static_cast<char*>(to)[bytes - 1] = '?';
    }
  };
  const auto errors_of = [&](OptimizerKind kind, Parallel parallel) {
    Config c = config(cat("run", static_cast<int>(kind), name_of(parallel)));
    c.optimizer.kind = kind;
    c.parallel = {.parallel = parallel, .ranks = 2};
    return run_thread_ranks(2, {}, [&](Communicator& rank) {
      OtherProcessor group(rank);
      const auto context = make_context(c.compute, 1);
      const ContextScope scope(*context);
      Recorded silent;
      const Trainer trainer(c, silent, &group);
      return std::string();
    });
  };
  for (const Parallel parallel : {Parallel::ddp, Parallel::automatic}) {
    for (const std::string& error : errors_of(OptimizerKind::muon, parallel)) {
      EXPECT_TRUE(std::regex_match(
          error,
          std::regex("ranks 0 and 1 differ in their processors \\(Muon under ddp needs equal "
                     "ones\\): CPU level [a-z0-9_]+ on rank 0; CPU level .*\\? on rank 1")))
          << error;
    }
  }
  const std::vector<std::string> none(2);
  EXPECT_EQ(errors_of(OptimizerKind::muon, Parallel::zero1), none);
  EXPECT_EQ(errors_of(OptimizerKind::adamw, Parallel::ddp), none);
}

TEST_P(RanksOfOneMode, ALossThatIsNotFiniteIsTraced) {
  Config c = config_for(2, "nan", 9);
  c.optimizer.lr = 1e30;
  c.optimizer.clip = 0.0;
  c.optimizer.warmup = 0;
  Recorded recorded;
  expect_error([&] { train_on(2, c, recorded); },
               {"The first non-finite tensor is ", " on rank 0. The weights of step "});
  EXPECT_TRUE(latest_checkpoint(fs::path(c.run.out) / "checkpoints"));
}

// Only the last rank is asked to stop, before its first step: all end after the same one, also
// where a sample is due, which the first rank alone draws.
TEST_P(RanksOfOneMode, AllStopAfterTheSameStep) {
  const TrainingResult one = outcome(1, config_for(1, "one", 9));
  for (const bool samples : {false, true}) {
    const std::atomic<bool> stop{true};
    Config c = config_for(3, samples ? "samples" : "several", 9);
    c.sample.tokens = 4;
    if (samples) c.train.eval_every = 0, c.train.sample_every = 1;
    Recorded recorded;
    train_on(3, c, recorded, {}, &stop);
    EXPECT_LT(recorded.losses().size(), 4u);
    c.run.resume = c.run.out;
    train_on(3, c, recorded);
    EXPECT_EQ(outcome_of(c, recorded).weights, one.weights);
    EXPECT_EQ(recorded.samples.empty(), !samples);
  }
}

TEST_P(RanksOfOneMode, DelaysChangeNothing) {
  const TrainingResult one = outcome(1, config_for(1, "one", 3));
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Recorded recorded;
    const Config c = config_for(3, cat("seed", seed), 3);
    train_on(3, c, recorded, {.seed = seed});
    ASSERT_TRUE(outcome_of(c, recorded) == one) << "seed " << seed;
  }
}

// A death at any collective: an error on every rank, and a checkpoint that a resume continues to
// the bits of the undisturbed run.
TEST_P(RanksOfOneMode, ADeathAtAnyCollectiveLosesNothingSaved) {
  const TrainingResult one = outcome(1, config_for(1, "one", 4));
  bool survived = false;
  for (int64_t at = 0; !survived; at += 13) {
    ASSERT_LT(at, 5000);
    Config c = config_for(2, cat("death", at), 4);
    c.train.checkpoint_every = 1;
    Recorded recorded;
    try {
      train_on(2, c, recorded, {.dying_rank = static_cast<int>(at % 2), .dying_at = at});
      survived = true;
    } catch (const CommunicationError&) {
      if (!fs::exists(c.run.out)) continue;  // before the run folder was made
      c.run.resume = c.run.out;
      train_on(2, c, recorded);
    }
    ASSERT_EQ(outcome_of(c, recorded).weights, one.weights) << "death at " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, RanksOfOneMode,
                         testing::Values(Mode{Precision::fp32, KernelKind::fused, 0.1},
                                         Mode{Precision::bf16, KernelKind::fused, 0.1,
                                              OptimizerKind::adamw, Parallel::zero1},
                                         Mode{Precision::bf16, KernelKind::fused, 0.1,
                                              OptimizerKind::adamw, Parallel::fsdp},
                                         Mode{Precision::bf16, KernelKind::fused, 0.1,
                                              OptimizerKind::muon, Parallel::zero1}),
                         name_of);

}  // namespace
}  // namespace quern
