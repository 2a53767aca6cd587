#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "config/config_parse.h"
#include "data/token_sidecar.h"
#include "run/checkpoint.h"
#include "run/train_state.h"
#include "support/file_size_limit.h"
#include "support/files.h"
#include "support/token_files.h"
#include "support/training.h"
#include "train/process_time.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

TEST_F(TrainerTest, LearnsAndGeneralises) {
  Config c = config();
  c.train.steps = 150;
  c.train.eval_every = 150;
  c.optimizer.lr = 5e-3;
  Recorded recorded;
  const TrainResult result = train(c, recorded);
  // Eight equally likely words of 5.1 bytes on average: log(8) / 5.1 = 0.4 nats a byte at best; 257
  // tokens at first.
  EXPECT_NEAR(recorded.steps.front().loss, std::log(257.0), 0.2);
  EXPECT_LT(result.best_loss, 1.2);
  EXPECT_EQ(result.best_step, 150);
}

TEST_F(TrainerTest, TwoRunsAreBitEqual) {
  Recorded first, second;
  train(config("a"), first);
  train(config("b"), second);
  EXPECT_EQ(first.losses(), second.losses());
  const fs::path weights = fs::path("checkpoints") / "step_00000100" / "model.safetensors";
  EXPECT_TRUE(read_file(folder_ / "a" / weights) == read_file(folder_ / "b" / weights));
}

TEST_F(TrainerTest, FollowsTheConfiguredSchedule) {
  Config c = config();
  c.optimizer = {.lr = 0.02, .min_lr = 0.25, .warmup = 2, .decay_fraction = 0.5};
  c.optimizer.schedule = ScheduleKind::wsd;
  Recorded recorded;
  train(c, recorded);
  const Schedule expected{ScheduleKind::wsd, 0.02, 0.25, 2, c.train.steps, 0.5};
  for (const StepMetrics& step : recorded.steps)
    EXPECT_NEAR(step.lr, expected.at(step.step - 1), 1e-8);
}

TEST_F(TrainerTest, AnotherSeedIsAnotherRun) {
  Recorded first, second;
  Config c = config("a");
  c.train.steps = 2;
  train(c, first);
  c.run.out = (folder_ / "b").string();
  c.train.seed = 2;
  train(c, second);
  EXPECT_NE(first.losses(), second.losses());
}

TEST_F(TrainerTest, ResumeIsExactInFp32) {
  expect_resume_is_exact(config(), folder_);
}

TEST_F(TrainerTest, ResumeIsExactInBf16WithAccumulationAndRecomputation) {
  Config c = config();
  c.compute.precision = Precision::bf16;
  c.compute.recompute = Recompute::blocks;
  c.train.accumulate = 2;
  c.train.steps = 20;
  expect_resume_is_exact(c, folder_);
}

TEST_F(TrainerTest, ResumeIsExactWithDropoutAndZLoss) {
  Config c = config();
  c.compute.recompute = Recompute::blocks;
  c.compute.dropout = 0.2;
  c.compute.z_loss = 1e-3;
  c.train.accumulate = 2;
  c.train.steps = 20;
  expect_resume_is_exact(c, folder_);
}

TEST_F(TrainerTest, ResumeIsExactInNaiveMode) {
  Config c = config();
  c.compute.attention = AttentionKind::naive;
  c.compute.kernels = KernelKind::naive;
  c.train.steps = 20;
  expect_resume_is_exact(c, folder_);
}

// 100 steps of 4 windows pass the 281 of an epoch, in which a text ends.
TEST_F(TrainerTest, ResumeIsExactWithAPermutationAndMaskedDocuments) {
  Config c = config();
  write_corpus(folder_ / "texts/a.txt", 3000);
  write_corpus(folder_ / "texts/b.txt", 7000);
  c.data.train = (folder_ / "texts").string();
  c.data.sampling = Sampling::permutation;
  c.data.document_mask = true;
  expect_resume_is_exact(c, folder_);
}

// The same steps but for FP32 sums in another order.
void expect_near_steps(const Recorded& a, const Recorded& b, size_t steps) {
  for (size_t i = 0; i < steps; ++i) {
    EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, 1e-5);
    EXPECT_NEAR(a.steps[i].grad_norm, b.steps[i].grad_norm, 1e-4);
    EXPECT_NEAR(a.steps[i].z_loss.value(), b.steps[i].z_loss.value(), 1e-6);
  }
}

// Micro-batches with other numbers of targets: the mean is over those of all, as in one batch.
TEST_F(TrainerTest, AccumulationWeighsEachTargetAlike) {
  for (const KernelKind kernels : {KernelKind::fused, KernelKind::naive}) {
    Recorded large, split;
    Config c = config(cat("large", static_cast<int>(kernels)));
    c.data.train = write_documents();
    c.data.validation = text().string();
    c.data.document_mask = true;
    c.compute.kernels = kernels;
    c.compute.z_loss = 0.01;
    c.train.steps = 4;
    c.train.batch = 4;
    train(c, large);
    c.run.out += "_split";
    c.train.batch = 1;
    c.train.accumulate = 4;
    train(c, split);
    expect_near_steps(large, split, 4);
  }
}

TEST_F(TrainerTest, RecomputationChangesNothing) {
  Recorded stored, recomputed;
  Config c = config("a");
  c.train.steps = 5;
  train(c, stored);
  c.run.out = (folder_ / "b").string();
  c.compute.recompute = Recompute::blocks;
  train(c, recomputed);
  EXPECT_EQ(stored.losses(), recomputed.losses());
}

TEST_F(TrainerTest, AccumulationEqualsALargerBatch) {
  // Not the same batches as one of twice the size, since each draws its own windows. So the
  // gradient norm and the loss must equal the average: batch k of 8 rows and batches 2k, 2k+1 of 4
  // rows have the same draws.
  Recorded large, split;
  Config c = config("a");
  c.train.steps = 3;
  c.train.batch = 8;
  c.compute.z_loss = 0.01;
  train(c, large);
  c.run.out = (folder_ / "b").string();
  c.train.batch = 4;
  c.train.accumulate = 2;
  train(c, split);
  expect_near_steps(large, split, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_GT(large.steps[i].z_loss.value(), 0.1);
}

TEST_F(TrainerTest, MetricsFileHoldsEveryStepAndSurvivesResume) {
  Config c = config();
  c.train.steps = 6;
  c.train.checkpoint_every = 4;
  c.train.eval_every = 3;
  Recorded recorded;
  train(c, recorded);
  std::ofstream(folder_ / "run" / "metrics.jsonl", std::ios::app)
      << "{\"step\": 7, \"lo";  // cut by a crash
  c.run.resume = (folder_ / "run" / "checkpoints" / "step_00000004").string();
  train(c, recorded);
  std::ifstream in(folder_ / "run" / "metrics.jsonl");
  std::vector<int64_t> steps, validations, first_steps, ends;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    (row.contains("val_loss")       ? validations
     : row.contains("first_step_s") ? first_steps
     : row.contains("ended")        ? ends
                                    : steps)
        .push_back(row.at("step"));
  }
  EXPECT_EQ(first_steps, (std::vector<int64_t>{1, 5})) << "of each process";
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(validations, (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(ends, (std::vector<int64_t>{6})) << "of the process that went on to the end";
}

// The training itself has enough memory: it continues without the sample.
TEST_F(TrainerTest, ASampleWithoutMemoryIsAWarning) {
  struct FailingSample : Recorded {
    void on_checkpoint(int64_t step, const fs::path&) override {
      if (step == 2) Context::current().allocator()->fail_after(0);  // the sample's first one
    }
  };
  Config c = config();
  c.train.steps = 4;
  c.train.checkpoint_every = c.train.sample_every = 2;
  FailingSample recorded;
  EXPECT_EQ(train(c, recorded).steps, 4);
  ASSERT_EQ(recorded.warnings.size(), 1u);
  EXPECT_TRUE(recorded.warnings[0].starts_with("no sample after step 2: out of memory on cpu: "))
      << recorded.warnings[0];
  EXPECT_EQ(recorded.samples.size(), 1u);
}

TEST_F(TrainerTest, ASampleThatCannotBeIsAWarning) {
  Config c = config();
  c.train.steps = 4;
  c.train.sample_every = 2;
  c.sample.prompt = "";  // bytes have no begin token to start with
  Recorded recorded;
  EXPECT_EQ(train(c, recorded).steps, 4);
  ASSERT_EQ(recorded.warnings.size(), 2u);
  EXPECT_TRUE(recorded.warnings[0].starts_with("no sample after step 2: ")) << recorded.warnings[0];
}

TEST_F(TrainerTest, SamplesAreWrittenAndTheBestCheckpointIsKept) {
  Config c = config();
  c.train.steps = 40;
  c.train.eval_every = 10;
  c.train.sample_every = 20;
  c.train.keep = 1;
  c.sample.tokens = 30;
  Recorded recorded;
  const TrainResult result = train(c, recorded);
  EXPECT_EQ(recorded.samples.size(), 2u);
  EXPECT_NE(read_file(folder_ / "run" / "samples.txt").find("--- step 40"), std::string::npos);
  const auto best = best_checkpoint(folder_ / "run" / "checkpoints");
  ASSERT_TRUE(best);
  EXPECT_EQ(*best, checkpoint_path(folder_ / "run" / "checkpoints", result.best_step));
}

TEST_F(TrainerTest, TheFirstStepIsTimedFromTheStartOfTheProcess) {
  struct Watch : Recorded {
    std::vector<StartSummary> starts;
    double before = seconds_since_process_start(), seen = 0.0;
    void on_first_step(const StartSummary& start) override {
      starts.push_back(start);
      seen = seconds_since_process_start();
    }
  } watch;
  Config c = config();
  c.train.steps = 3;
  train(c, watch);
  ASSERT_EQ(watch.starts.size(), 1u);
  const StartSummary& times = watch.starts[0];
  EXPECT_LE(watch.before, times.context);
  EXPECT_LE(times.context, times.model);
  EXPECT_LE(times.model, times.first_step);
  EXPECT_LE(times.first_step, watch.seen);
  EXPECT_EQ(times.peak_flops, 0.0) << "a CPU's peak cannot be measured well enough";
  for (const StepMetrics& m : watch.steps) EXPECT_EQ(m.mfu, 0.0);
}

// On the CPU a step is done when its launch returns: its time must not include the next step.
TEST_F(TrainerTest, EveryStepsTimeIsItsOwn) {
  Config c = config();
  c.train.steps = 12;
  c.train.eval_every = 5;
  c.model.d_ff = 2048;  // some milliseconds a step
  Recorded recorded;
  const TrainResult result = train(c, recorded);
  double sum = 0.0;
  std::vector<double> times;
  for (const StepMetrics& m : recorded.steps) {
    sum += m.ms;
    times.push_back(m.ms);
  }
  std::sort(times.begin(), times.end());
  // The same work each time; a busy machine makes steps longer, not shorter. At most three would
  // have another one's time: those behind the two validations, and the last.
  EXPECT_GT(times[0], 0.3 * times[3]);
  EXPECT_LE(sum, 1e3 * result.train_seconds);
}

// An error in a validation does not cost the step's checkpoint, and the best checkpoint is marked
// as best in its own state.
TEST_F(TrainerTest, ACheckpointComesBeforeItsValidation) {
  struct Failing : Recorded {
    void on_validation(int64_t step, const Evaluation&, bool) override {
      if (step == 4) fail("planted");
    }
  } failing;
  Config c = config();
  c.train.steps = 6;
  c.train.eval_every = c.train.checkpoint_every = 2;
  c.optimizer.warmup = 0;
  EXPECT_THROW(train(c, failing), Error);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  EXPECT_EQ(checkpoint_steps(checkpoints), (std::vector<int64_t>{2, 4}));
  const TrainState at2 = state_of(open_checkpoint(checkpoint_path(checkpoints, 2)));
  EXPECT_EQ(at2.best_iteration, 2);
  EXPECT_LT(at2.best_loss, 10.0);
  EXPECT_EQ(*best_checkpoint(checkpoints), checkpoint_path(checkpoints, 2));
}

// Makes training diverge at once: a learning rate that overflows FP32 within a few steps.
Config diverging(Config c) {
  c.optimizer.lr = 1e30;
  c.optimizer.warmup = 0;
  c.optimizer.clip = 0.0;
  c.train.steps = 20;
  return c;
}

TEST_F(TrainerTest, NonfiniteLossStopsWithTheLastFiniteStateSaved) {
  const Config c = diverging(config());
  const std::string message = error_of(c);
  EXPECT_NE(message.find("The first non-finite tensor is "), std::string::npos) << message;
  EXPECT_EQ(message.find("not found again"), std::string::npos) << message;
  EXPECT_NE(message.find("--resume"), std::string::npos) << message;
  const auto kept = latest_checkpoint(folder_ / "run" / "checkpoints");
  ASSERT_TRUE(kept);
  const Checkpoint checkpoint = open_checkpoint(*kept);
  for (const std::string& name : checkpoint.weights.names()) {
    const TensorView tensor = checkpoint.weights.tensor(name);
    const auto* values = reinterpret_cast<const float*>(tensor.data.data());
    for (int64_t i = 0; i < tensor.shape.numel(); ++i)
      ASSERT_TRUE(std::isfinite(values[i])) << name;
  }
  rotate_checkpoints(folder_ / "run" / "checkpoints", 1);
  EXPECT_TRUE(fs::exists(*kept));
}

TEST_F(TrainerTest, NonfiniteLossCanBeSkipped) {
  Config c = diverging(config());
  c.train.on_nonfinite = OnNonfinite::skip;
  Recorded recorded;
  const TrainResult result = train(c, recorded);
  EXPECT_EQ(result.steps, 20);
  EXPECT_GT(recorded.steps.back().skipped, 0);
  EXPECT_EQ(static_cast<size_t>(recorded.steps.back().skipped), recorded.warnings.size());
}

TEST_F(TrainerTest, ARunThatHasSkippedStepsGoesOnUnderStop) {
  Config c = config();
  c.train.steps = 4;
  Recorded recorded;
  train(c, recorded);
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  TrainState state = peek_train_state(checkpoint_path(checkpoints, 4));
  state.skipped = 1;
  update_train_state(checkpoints, state);
  c.run.resume = c.run.out;
  c.train.steps = 6;
  EXPECT_EQ(train(c, recorded).steps, 6);
  EXPECT_EQ(recorded.steps.back().skipped, 1);
}

// A token that the sidecar's vocabulary excludes: the file was damaged after it was written.
TEST_F(TrainerTest, ABadTokenIsNamedAndCostsNoStep) {
  const std::vector<int32_t> good(4000, 65);
  std::vector<int32_t> bad = good;
  bad[1234] = 60000;
  const fs::path tokens = folder_ / "train_00000.bin";
  write_token_file(tokens, good, TokenEncoding::raw_u16);
  TokenSidecar sidecar;
  sidecar.encoding = TokenEncoding::raw_u16;
  sidecar.tokens = 4000;
  sidecar.documents = 1;
  sidecar.vocabulary = 257;
  sidecar.tokenizer_kind = sidecar.tokenizer_hash = "bytes";
  sidecar.file = digest_of_file(tokens);
  write_token_sidecar(tokens, sidecar);
  Config c = config("whole");
  c.data.train = tokens.string();
  c.data.sampling = Sampling::permutation;  // reaches every token in 28 steps
  c.train.steps = 40;
  Recorded whole, recorded;
  train(c, whole);
  write_token_file(tokens, bad, TokenEncoding::raw_u16);
  c.run.out = (folder_ / "run").string();
  expect_error([&] { train(c, recorded); },
               {"train_00000.bin: token 1234 is 60000, expected less than the vocabulary size 257",
                "are saved; continue with --resume"});
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  const std::vector<int64_t> steps = checkpoint_steps(checkpoints);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_GT(steps[0], 1) << "choose another place: it is the first batch's";
  write_token_file(tokens, good, TokenEncoding::raw_u16);
  c.run.resume = c.run.out;
  train(c, recorded);
  const fs::path weights = fs::path("checkpoints") / "step_00000040" / "model.safetensors";
  EXPECT_TRUE(read_file(folder_ / "run" / weights) == read_file(folder_ / "whole" / weights));
}

TEST_F(TrainerTest, AnyErrorSavesTheLastStep) {
  struct Failing : Recorded {
    std::string message;
    void on_step(const StepMetrics& m) override {
      if (m.step == 5) fail(message);
    }
  } failing;
  failing.message = "planted caf\xe9";  // no UTF-8
  expect_error([&] { train(config(), failing); }, {failing.message, "are saved"});
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  EXPECT_EQ(checkpoint_steps(checkpoints), std::vector<int64_t>{6}) << "reports come a step late";
  EXPECT_EQ(state_of(open_checkpoint(checkpoint_path(checkpoints, 6))).step, 6);
  EXPECT_NE(read_file(folder_ / "run" / "metrics.jsonl").find("\"ended\":\"planted caf"),
            std::string::npos);
}

// Rows of tokens that the text lacks have no gradient: with eps = 0 their update is 0 / 0, and the
// loss of the step itself is finite.
TEST_F(TrainerTest, WeightsThatAreNotFiniteAreNotSaved) {
  Config c = config();
  c.train.steps = 2;
  c.train.keep = 1;
  Recorded recorded;
  train(c, recorded);
  c.run.resume = c.run.out;
  c.train.steps = 6;
  c.train.checkpoint_every = 1;
  c.optimizer.eps = 0.0;
  expect_error(
      [&] { train(c, recorded); },
      {"after step 3: tensor 'model.embed_tokens.weight' holds ", "expected finite numbers",
       "The newest checkpoint is ", "step_00000002", "--resume"});
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  EXPECT_EQ(checkpoint_steps(checkpoints), std::vector<int64_t>{2});
  c.optimizer.eps = 1e-8;
  EXPECT_EQ(train(c, recorded).steps, 6) << "the good checkpoint goes on";
}

TEST_F(TrainerTest, BadInputIsRefusedWithItsOwnMessage) {
  const auto expect = [&](Config c, const std::string& part) {
    c.run.out = (folder_ / "bad").string();
    const std::string message = error_of(c);
    EXPECT_NE(message.find(part), std::string::npos)
        << "expected '" << part << "' in '" << message << "'";
    EXPECT_FALSE(fs::exists(folder_ / "bad")) << "a refused run left its folder behind";
  };
  Config c = config();
  c.data.train.clear();
  expect(c, "give --train FILE");
  c = config();
  c.data.train = (folder_ / "none.txt").string();
  expect(c, "none.txt");
  c = config();
  c.model.vocab_size = 64;  // text has bytes beyond it
  expect(c, "vocabulary");
  c = config();
  c.model.context = 15000;  // longer than the validation part
  expect(c, "tokens");
}

TEST_F(TrainerTest, AnExistingRunFolderIsNotTouched) {
  write_file(folder_ / "run" / "notes.txt", "mine");
  const std::string message = error_of(config());
  EXPECT_NE(message.find("exists already"), std::string::npos) << message;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "run"), {}), 1);
}

TEST_F(TrainerTest, IntervalsOfZeroSwitchThingsOff) {
  Config c = config();
  c.train.steps = 7;
  c.train.log_every = 0;
  Recorded recorded;
  train(c, recorded);
  EXPECT_TRUE(recorded.steps.empty());
  EXPECT_TRUE(recorded.validations.empty());
  EXPECT_TRUE(recorded.samples.empty());
  const std::string log = read_file(folder_ / "run" / "metrics.jsonl");  // `quern watch` ends by it
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  EXPECT_NE(log.find("\"ended\":\"done\""), std::string::npos) << log;
  EXPECT_FALSE(fs::exists(folder_ / "run" / "samples.txt"));
  EXPECT_EQ(checkpoint_steps(folder_ / "run" / "checkpoints"), std::vector<int64_t>{7});
}

// A model with more ids than the tokenizer draws some that stand for nothing.
TEST_F(TrainerTest, ASampleOfAPaddedVocabularyHasReplacementCharacters) {
  Config c = config();
  c.model.vocab_size = 4000;
  c.train.steps = 1;
  c.train.sample_every = 1;
  Recorded recorded;
  train(c, recorded);
  EXPECT_TRUE(recorded.warnings.empty());
  ASSERT_EQ(recorded.samples.size(), 1u);
  EXPECT_NE(recorded.samples[0].find("\uFFFD"), std::string::npos) << recorded.samples[0];
}

TEST_F(TrainerTest, AStopStringEndsASample) {
  const auto sample_of = [&](const std::string& out, const std::string& stop) {
    Config c = config(out);
    c.train.steps = 1;
    c.train.sample_every = 1;
    c.sample.tokens = 40;
    c.sample.prompt = "x";
    c.sample.stop = stop;
    Recorded recorded;
    train(c, recorded);
    return recorded.samples.at(0);
  };
  const std::string whole = sample_of("whole", "");
  const size_t end = whole.find(whole.back(), 1);
  EXPECT_EQ(sample_of("stopped", std::string(1, whole.back())), whole.substr(0, end));
}

TEST_F(TrainerTest, AnEmptyStopStringIsAnError) {
  Config c = config();
  c.sample.stop = "a||b";
  EXPECT_NE(error_of(c).find("stop"), std::string::npos) << error_of(c);
  EXPECT_FALSE(fs::exists(c.run.out));
}

TEST_F(TrainerTest, AStopTokenOutsideTheVocabularyIsAnError) {
  Config c = config();
  c.sample.stop_token = 1000000;
  EXPECT_NE(error_of(c).find("stop_token is 1000000, expected less"), std::string::npos)
      << error_of(c);
  EXPECT_FALSE(fs::exists(c.run.out));
}

TEST_F(TrainerTest, AFullDiskIsAnErrorAndOlderCheckpointsStay) {
  Config c = config();
  c.train.steps = 2;
  Recorded recorded;
  train(c, recorded);
  c.train.steps = 4;
  c.run.resume = c.run.out;
  {
    const FileSizeLimit limit(20000);  // a checkpoint's weights alone take 80 KB
    const std::string message = error_of(c);
    EXPECT_NE(message.find("step_00000004"), std::string::npos) << message;
    EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  }
  const std::string metrics = read_file(folder_ / "run" / "metrics.jsonl");
  EXPECT_NE(metrics.find("\"ended\":"), std::string::npos) << "the run says how it ended";
  EXPECT_NE(metrics.find("File too large\",\"time\""), std::string::npos) << metrics;
  const fs::path checkpoints = folder_ / "run" / "checkpoints";
  EXPECT_EQ(checkpoint_steps(checkpoints), std::vector<int64_t>{2});
  EXPECT_NO_THROW(open_checkpoint(checkpoint_path(checkpoints, 2)));
  EXPECT_EQ(train(c, recorded).steps, 4);  // there is room again
  const std::string again = read_file(folder_ / "run" / "metrics.jsonl");
  EXPECT_EQ(again.find("too large"), std::string::npos) << "a resumed run has not ended";
}

// Resident memory in KiB without file-backed pages: Linux reads those of the program itself at
// their first use.
int64_t anonymous_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8));
  }
  return 0;
}

// Measures from step 600, since the first evaluation and checkpoint allocate buffers that later
// ones reuse. 1,024 KiB are 750 bytes a step. Slow: also left out under sanitizers, which hold on
// to memory.
TEST_F(TrainerTest, SlowHostMemoryDoesNotGrowIn2000Steps) {
  struct Watch : Recorded {
    int64_t at600 = 0, at_end = 0;
    void on_progress(int64_t step, double) override {
      if (step == 600) at600 = anonymous_kib();
      if (step == 2000) at_end = anonymous_kib();
    }
  } watch;
  Config c = config();
  c.train.steps = 2000;
  c.train.log_every = 100;
  c.train.eval_every = 500;
  c.train.checkpoint_every = 500;
  train(c, watch);
  ASSERT_GT(watch.at600, 0);
  EXPECT_LE(watch.at_end - watch.at600, 1024);
}

TEST_F(TrainerTest, MemoryDoesNotGrow) {
  struct Watch : Recorded {
    int64_t at100 = 0, at_end = 0;
    void on_progress(int64_t step, double) override {
      const int64_t reserved = Context::current().allocator(kCpu)->stats().reserved;
      if (step == 100) at100 = reserved;
      at_end = reserved;
    }
  } watch;
  Config c = config();
  c.train.steps = 200;
  c.train.log_every = 100;
  train(c, watch);
  EXPECT_GT(watch.at100, 0);
  EXPECT_EQ(watch.at100, watch.at_end);
}

}  // namespace
}  // namespace quern
