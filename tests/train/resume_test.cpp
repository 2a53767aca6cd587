// Runs that were killed, stopped or taken back, and go on.
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "config/config_parse.h"
#include "run/checkpoint.h"
#include "run/make_context.h"
#include "run/train_state.h"
#include "support/files.h"
#include "support/token_files.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

using namespace testing_support;

// The remains of a process that was killed before its first step.
void begin_only(const Config& config) {
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  Recorded recorded;
  Trainer killed(config, recorded);
}

// A process killed before it wrote config.toml leaves this.
TEST_F(TrainerTest, AFolderWithoutAConfigurationIsNew) {
  fs::create_directories(folder_ / "run" / "checkpoints");
  write_file(folder_ / "run" / ".lock", "");
  write_file(folder_ / "run" / "config.toml.tmp", "[mod");
  Config c = config();
  c.train.steps = 2;
  Recorded recorded;
  EXPECT_EQ(train(c, recorded).steps, 2);
}

// Ends the process, as far as files can tell, right after the checkpoint of a step.
struct KilledAfterSave : Recorded {
  int64_t at;
  explicit KilledAfterSave(int64_t step) : at(step) {}
  void on_checkpoint(int64_t step, const fs::path&) override {
    if (step == at) fail("killed");
  }
};

TEST_F(TrainerTest, ARunWithoutACheckpointBeginsAgain) {
  Config c = config("whole");
  c.train.steps = 6;
  c.train.sample_every = 2;
  c.sample.tokens = 5;
  Recorded whole;
  train(c, whole);
  c.run.out = (folder_ / "run").string();
  begin_only(c);
  write_file(folder_ / "run" / "metrics.jsonl", "{\"step\":1,\"loss\":9.0}\n");
  write_file(folder_ / "run" / "samples.txt", "--- step 2\nlost\n");
  c.run.resume = c.run.out;
  Recorded again;
  EXPECT_EQ(train(c, again).steps, 6);
  EXPECT_EQ(again.losses(), whole.losses());
  ASSERT_EQ(again.warnings.size(), 1u);
  EXPECT_NE(again.warnings[0].find("begins again at its first step"), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "run" / "samples.txt"),
            read_file(folder_ / "whole" / "samples.txt"));
}

TEST_F(TrainerTest, AResumedRunMakesUpForTheValidationAndSampleOfItsStep) {
  Config c = config("whole");
  c.train.steps = 12;
  c.train.eval_every = c.train.checkpoint_every = c.train.sample_every = 4;
  c.sample.tokens = 5;
  c.optimizer.warmup = 0;
  Recorded whole;
  train(c, whole);
  ASSERT_EQ(whole.validations.size(), 3u);
  for (const int64_t at : {4, 8, 12}) {  // the last one, too
    SCOPED_TRACE(at);
    c.run.out = (folder_ / cat("killed", at)).string();
    c.run.resume = "";
    KilledAfterSave killed(at);
    EXPECT_THROW(train(c, killed), Error);
    c.run.resume = c.run.out;
    Recorded resumed;
    const TrainResult result = train(c, resumed);
    EXPECT_EQ(result.steps, 12);
    std::vector<double> validations = killed.validations;
    validations.insert(validations.end(), resumed.validations.begin(), resumed.validations.end());
    EXPECT_EQ(validations, whole.validations);
    EXPECT_EQ(read_file(folder_ / c.run.out / "samples.txt"),
              read_file(folder_ / "whole" / "samples.txt"));
    const auto best = [&](const char* run) {
      return best_checkpoint(folder_ / run / "checkpoints")->filename();
    };
    EXPECT_EQ(best(c.run.out.c_str()), best("whole"));
    EXPECT_NE(error_of(c).find("is at step 12 of 12"), std::string::npos) << error_of(c);
  }
}

// Killed between the line of the log and the mark: the log's loss counts.
TEST_F(TrainerTest, AResumedRunMarksTheBestThatItsLogKnows) {
  struct KilledBeforeMark : Recorded {
    void on_validation(int64_t step, const Evaluation&, bool) override {
      if (step == 4) fail("killed");
    }
  } killed;
  Config c = config();
  c.train.steps = 6;
  c.train.eval_every = c.train.checkpoint_every = 4;
  c.optimizer.warmup = 0;
  EXPECT_THROW(train(c, killed), Error);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  EXPECT_FALSE(best_checkpoint(checkpoints));
  c.run.resume = c.run.out;
  c.train.eval_every = 0;
  Recorded resumed;
  EXPECT_EQ(train(c, resumed).best_step, 4);
  EXPECT_TRUE(resumed.validations.empty()) << "it is not made twice";
  EXPECT_EQ(*best_checkpoint(checkpoints), checkpoint_path(checkpoints, 4));
}

// With lr = 0 every window has one loss, whichever step has it.
TEST_F(TrainerTest, AResumedRunWithOtherStepsSeesEveryWindowOnce) {
  Config c = config("whole");
  c.optimizer.lr = 0.0;
  c.optimizer.warmup = 0;
  c.data.sampling = Sampling::permutation;
  c.train.log_every = 1;
  c.train.batch = 1;
  c.train.steps = 20;
  Recorded whole, part;
  train(c, whole);
  c.run.out = (folder_ / "run").string();
  c.train.steps = 3;
  train(c, part);
  c.run.resume = c.run.out;
  int64_t windows = 3;
  const struct { int64_t batch, accumulate, steps; } changes[] = {{4, 2, 1}, {1, 1, 2}, {3, 1, 2}};
  for (const auto& [batch, accumulate, steps] : changes) {
    c.train.batch = batch;
    c.train.accumulate = accumulate;
    c.train.steps += steps;
    Recorded resumed;
    train(c, resumed);
    ASSERT_EQ(std::ssize(resumed.steps), steps);
    for (const StepMetrics& step : resumed.steps) {
      double expected = 0.0;
      for (int64_t i = 0; i < batch * accumulate; ++i) {
        expected += whole.steps.at(static_cast<size_t>(windows++)).loss;
      }
      EXPECT_NEAR(step.loss, expected / static_cast<double>(batch * accumulate), 1e-6);
      EXPECT_EQ(step.tokens, windows * c.model.context);
    }
  }
  const fs::path newest = checkpoint_path(folder_ / "run" / "checkpoints", c.train.steps);
  EXPECT_EQ(state_of(open_checkpoint(newest)).sampler.draw, static_cast<uint64_t>(windows));
}

TEST_F(TrainerTest, ChangedDataAreAWarning) {
  Config c = config();
  c.train.steps = 2;
  Recorded recorded, same, changed;
  train(c, recorded);
  c.run.resume = c.run.out;
  c.train.steps = 3;
  train(c, same);
  EXPECT_TRUE(same.warnings.empty());
  std::string corpus = read_file(text());
  corpus[100] ^= 1;
  write_file(text(), corpus);
  c.train.steps = 4;
  EXPECT_EQ(train(c, changed).steps, 4);
  ASSERT_EQ(changed.warnings.size(), 1u) << "the validation data are the same";
  EXPECT_NE(changed.warnings[0].find("text.txt has changed since the checkpoint: it has 18000"),
            std::string::npos)
      << changed.warnings[0];
}

// A file cut while it is mapped would end the process at the next read.
TEST_F(TrainerTest, ATokenFileThatChangesMeanwhileEndsTheRunWithACheckpoint) {
  const fs::path tokens = folder_ / "tokens.bin";
  const auto write = [&](int32_t token) {
    write_token_file(tokens, std::vector<int32_t>(20000, token), TokenEncoding::raw_u16);
  };
  struct Changes : Recorded {
    std::function<void()> change;
    void on_progress(int64_t step, double) override {
      if (step == 3) change();
    }
  };
  const auto expect_end = [&](const std::string& run, const std::string& message,
                              const std::function<void()>& change) {
    write(7);
    // A file system's time may advance in steps of 10 ms.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Changes changes;
    changes.change = change;
    Config c = config(run);
    c.data.train = tokens.string();
    c.model.vocab_size = 300;
    expect_error([&] { train(c, changes); },
                 {cat("tokens.bin: ", message), "are saved; continue with --resume"});
    EXPECT_TRUE(latest_checkpoint(folder_ / run / "checkpoints"));
  };
  expect_end("cut", "has 1000 bytes now, expected the 40000",
             [&] { fs::resize_file(tokens, 1000); });
  expect_end("rewritten", "was written to while it is in use", [&] {
    std::fstream(tokens, std::ios::binary | std::ios::in | std::ios::out).write("8", 1);
  });
}

TEST_F(TrainerTest, GoingBackKeepsTheLaterCheckpointsUntilTheNextSave) {
  Config c = config();
  c.train.steps = 6;
  c.train.checkpoint_every = 2;
  Recorded recorded;
  train(c, recorded);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  c.run.resume = checkpoint_path(checkpoints, 2).string();
  begin_only(c);
  EXPECT_EQ(checkpoint_steps(checkpoints), std::vector<int64_t>{2});
  EXPECT_NO_THROW(open_checkpoint(checkpoints / "step_00000006.later"));
  train(c, recorded);
  EXPECT_EQ(checkpoint_steps(checkpoints), (std::vector<int64_t>{2, 4, 6}));
  EXPECT_FALSE(fs::exists(checkpoints / "step_00000006.later"));
}

TEST_F(TrainerTest, AStopIsAnsweredBetweenMicroBatchesAndWithinAValidation) {
  Config c = config("whole");
  c.train.steps = 4;
  c.train.accumulate = 3;
  c.train.eval_every = 4;
  Recorded whole;
  train(c, whole);

  c.run.out = (folder_ / "micro").string();
  const std::atomic<bool> at_once{true};
  Recorded stopped;
  const TrainResult none = train(c, stopped, &at_once);
  EXPECT_TRUE(none.interrupted);
  EXPECT_EQ(none.steps, 0) << "a third of a step is no step";
  c.run.resume = c.run.out;
  Recorded resumed;
  train(c, resumed);
  EXPECT_EQ(resumed.losses(), whole.losses());
  EXPECT_EQ(resumed.validations, whole.validations);

  struct StopsValidation : Recorded {
    std::atomic<bool> stop{false};
    void on_validating(int64_t done, int64_t) override { stop = done > 0; }
  } validating;
  c.run = {(folder_ / "validation").string(), ""};
  const TrainResult half = train(c, validating, &validating.stop);
  EXPECT_TRUE(half.interrupted);
  EXPECT_EQ(half.steps, 4);
  EXPECT_TRUE(validating.validations.empty());
  c.run.resume = c.run.out;
  Recorded rest;
  EXPECT_FALSE(train(c, rest).interrupted);
  EXPECT_EQ(rest.validations, whole.validations);
}

TEST_F(TrainerTest, ResumeRefusesAnotherModelAndAFinishedRun) {
  Config c = config();
  c.train.steps = 3;
  Recorded recorded;
  train(c, recorded);
  c.run.resume = c.run.out;
  EXPECT_NE(error_of(c).find("is at step 3 of 3"), std::string::npos) << error_of(c);
  c.train.steps = 5;
  c.model.d_ff = 64;
  EXPECT_NE(error_of(c).find("found d_ff = 64"), std::string::npos) << error_of(c);
  c.run.resume = (folder_ / "nowhere").string();
  EXPECT_NE(error_of(c).find("not a run folder"), std::string::npos) << error_of(c);
}

TEST_F(TrainerTest, GoingBackForgetsWhatCameAfter) {
  Config c = config();
  c.train.steps = 30;
  c.train.eval_every = 10;
  Recorded recorded, again;
  ASSERT_EQ(train(c, recorded).best_step, 30);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  c.run.resume = checkpoint_path(checkpoints, 10).string();
  c.train.steps = 12;
  c.train.keep = 1;
  c.train.eval_every = 0;
  const TrainResult result = train(c, again);
  EXPECT_EQ(again.warnings.size(), 1u);
  EXPECT_EQ(result.best_step, 10);
  EXPECT_EQ(again.steps.back().step, 12);
  EXPECT_EQ(checkpoint_steps(checkpoints), (std::vector<int64_t>{10, 12}));
  EXPECT_EQ(*best_checkpoint(checkpoints), checkpoint_path(checkpoints, 10));
}

// Stopped before its first step, it has saved step 0.
TEST_F(TrainerTest, AStepZeroIsNotTheBest) {
  Config c = config();
  c.train.steps = 3;
  c.train.accumulate = 2;  // a stop is answered between micro-batches
  const std::atomic<bool> stop{true};
  Recorded recorded;
  train(c, recorded, &stop);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  ASSERT_EQ(checkpoint_steps(checkpoints), std::vector<int64_t>{0});
  c.run.resume = c.run.out;
  train(c, recorded);
  EXPECT_FALSE(best_checkpoint(checkpoints));
}

// A copy that rotation does not see, whose step has no checkpoint of its own any more.
TEST_F(TrainerTest, ACopiedCheckpointIsResumed) {
  Config c = config();
  c.train.steps = 4;
  c.train.checkpoint_every = c.train.eval_every = 4;
  Recorded recorded;
  train(c, recorded);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  fs::copy(checkpoint_path(checkpoints, 4), checkpoints / "mine", fs::copy_options::recursive);
  c.run.resume = c.run.out;
  c.train.keep = 1;
  c.train.steps = 12;
  c.optimizer.lr = 1e-2;
  train(c, recorded);
  ASSERT_FALSE(fs::exists(checkpoint_path(checkpoints, 4)));
  c.run.resume = (checkpoints / "mine").string();
  c.train.steps = 6;
  Recorded again;
  EXPECT_EQ(train(c, again).steps, 6);
  EXPECT_EQ(again.steps.front().step, 5);
  EXPECT_EQ(checkpoint_steps(checkpoints).back(), 6);
}

// Of another history: which of the two would the run go on from next?
TEST_F(TrainerTest, ACopyOfAnotherHistoryIsRefused) {
  Config c = config();
  c.train.steps = 4;
  Recorded recorded;
  train(c, recorded);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  fs::copy(checkpoint_path(checkpoints, 4), checkpoints / "mine", fs::copy_options::recursive);
  fs::remove_all(checkpoints / "step_00000004");
  Config other = config("other");
  other.train.steps = 4;
  other.optimizer.lr = 1e-2;
  train(other, recorded);
  fs::rename(folder_ / "other" / "checkpoints" / "step_00000004", checkpoints / "step_00000004");
  c.run.resume = (checkpoints / "mine").string();
  c.train.steps = 6;
  EXPECT_NE(error_of(c).find("another checkpoint"), std::string::npos) << error_of(c);
}

TEST_F(TrainerTest, AResumedRunTakesOverTheNewConfiguration) {
  Config c = config();
  c.train.steps = 2;
  Recorded recorded;
  train(c, recorded);
  c.run.resume = c.run.out;
  c.train.steps = 4;
  train(c, recorded);
  const Config saved = load_config((folder_ / "run" / "config.toml").string());
  EXPECT_EQ(saved.train.steps, 4);
  EXPECT_EQ(saved.run.resume, "");
}

}  // namespace
}  // namespace quern
