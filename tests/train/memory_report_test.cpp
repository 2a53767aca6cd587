// The report of an out of memory: on traces made by hand, and in a training run with a limit.
#include "train/memory_report.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "support/thread_ranks.h"
#include "support/training.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

void expect_parts(const std::string& text, std::initializer_list<std::string> parts) {
  size_t at = 0;
  for (const std::string& part : parts) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << "in this order: " << part << "\n" << text;
    at = found;
  }
}

TracedAllocation live(MemoryTrace& trace, int64_t bytes, const char* name, const char* module,
                      const char* phase, MemoryCategory category) {
  TracedAllocation a;
  a.bytes = bytes;
  a.category = category;
  a.name = trace.names.id(name);
  a.place.module = trace.names.id(module);
  a.place.phase = trace.names.id(phase);
  a.place.op = trace.names.id("swiglu");
  a.place.backward = true;
  return a;
}

MemoryTrace failed_trace() {
  MemoryTrace trace;
  trace.device = "cuda:0";
  for (int i = 0; i < 12; ++i) {
    trace.allocations.push_back(live(trace, (i + 1) * kMiB, "small one", "model.layers.1",
                                     "forward", MemoryCategory::activations));
  }
  trace.allocations.push_back(
      live(trace, 2000 * kMiB, "parameters", "", "", MemoryCategory::parameters));
  trace.end = 5;
  trace.stats.allocated = 2078 * kMiB;
  trace.stats.reserved = 2100 * kMiB;
  trace.failure = TracedFailure{5, 512 * kMiB, 0, trace.names.id("logits"), {}};
  trace.failure->place.phase = trace.names.id("backward");
  return trace;
}

Config small_config() {
  Config config;
  apply_size(config.model, "small");
  config.model.vocab_size = 10000;
  config.model.context = 512;
  config.train.batch = 12;
  return config;
}

TEST(MemoryReport, NamesTheRequestTheCategoriesAndTheLargest) {
  const std::string text = memory_report(failed_trace(), Config(), MemoryPass::step, {});
  expect_parts(
      text, {"out of memory on cuda:0: logits asked for 512.0 MiB, phase backward",
             "2078.0 MiB are in use, 2100.0 MiB held", "parameters    2000.0 MiB   96.2 %",
             "gradients        0.0 KiB", "activations     78.0 MiB    3.8 %",
             "total         2078.0 MiB", "The largest of 13 allocations:", "2000.0 MiB  parameters",
             "12.0 MiB  small one", "swiglu backward", "model.layers.1", "forward", "4.0 MiB"});
  EXPECT_EQ(text.find("3.0 MiB  small"), std::string::npos) << "ten are listed";
  EXPECT_EQ(text.find("Predicted"), std::string::npos) << "without a vocabulary nothing is known";
}

TEST(MemoryReport, SaysWhatToLowerAndWhatThenFits) {
  const Config config = small_config();
  const std::string text =
      memory_report(failed_trace(), config, MemoryPass::step, {4 * kGiB, "cuda:0"});
  expect_parts(text,
               {"Predicted need of a training step (batch 12, ctx 512): ", "cuda:0 has 4096.0 MiB",
                "Lower batch", "fits", "batch = ", "accumulate = ", "recompute = blocks",
                "precision = bf16", "ctx = "});
  EXPECT_EQ(text.find("attention = flash"), std::string::npos) << "it is already";
  EXPECT_EQ(text.find("kernels = fused"), std::string::npos);
}

// The need printed beside a change equals predict_peak's result for it.
TEST(MemoryReport, TheNeedsAreThoseOfThePrediction) {
  Config config = small_config();
  const std::string text =
      memory_report(failed_trace(), config, MemoryPass::step, {4 * kGiB, "cuda:0"});
  config.compute.recompute = Recompute::blocks;
  const int64_t need = predict_peak(config, MemoryPass::step, current_target()).total();
  std::string line = text.substr(0, text.find("recompute = blocks"));
  line = line.substr(line.rfind('\n') + 1);
  EXPECT_NEAR(std::stod(line), static_cast<double>(need) / static_cast<double>(kMiB), 0.06) << line;
}

TEST(MemoryReport, WhatDoesNotFitAloneIsTriedTogether) {
  const std::string text = memory_report(failed_trace(), small_config(), MemoryPass::step,
                                         {2200 * kMiB, "memory_limit"});
  expect_parts(text,
               {"memory_limit has 2200.0 MiB", "batch = 1, accumulate = 12, recompute = blocks"});
  const std::string none =
      memory_report(failed_trace(), small_config(), MemoryPass::step, {100 * kMiB, "memory_limit"});
  expect_parts(none, {"None of it is enough: choose a smaller size"});
  EXPECT_EQ(none.find("fits"), std::string::npos);
}

TEST(MemoryReport, OffersBf16MomentsWhereTheyAreFp32) {
  const auto report = [](const OptimizerSection& optimizer, MemoryPass pass) {
    Config config = small_config();
    config.optimizer = optimizer;
    return memory_report(failed_trace(), config, pass, {2200 * kMiB, "memory_limit"});
  };
  expect_parts(report({}, MemoryPass::step), {"  moments = bf16\n", "fused, moments = bf16\n"});
  expect_parts(report({.kind = OptimizerKind::muon}, MemoryPass::step), {"  moments = bf16\n"});
  const std::string given = report({.moments = MomentType::bf16}, MemoryPass::step);
  EXPECT_EQ(given.find("  moments = bf16\n"), std::string::npos);
  const std::string forward = report({}, MemoryPass::forward);
  EXPECT_EQ(forward.find("moments"), std::string::npos);
}

TEST(MemoryReport, AForwardHasNoAccumulationAndNothingToRecompute) {
  const std::string text =
      memory_report(failed_trace(), small_config(), MemoryPass::forward, {1 * kGiB, "cuda:0"});
  expect_parts(text, {"Predicted need of a forward (batch 12, ctx 512)"});
  EXPECT_EQ(text.find("accumulate"), std::string::npos);
  EXPECT_EQ(text.find("recompute"), std::string::npos);
}

struct LimitedTraining : testing::Test {
  void SetUp() override { write_corpus(folder / "text.txt", 20000); }
  Config config() const {
    Config c = tiny_config(folder / "text.txt", folder / "run");
    c.train.steps = 3;
    return c;
  }
  TemporaryFolder folder;
  Recorded recorded;
};

TEST_F(LimitedTraining, EnoughIsEnough) {
  Config c = config();
  c.compute.memory_limit = 64;
  EXPECT_EQ(train(c, recorded).steps, 3);
}

TEST_F(LimitedTraining, WhatFitsOnlyWithBlocksComputedAgainTrains) {
  Config c = config();
  c.model.layers = 8;
  c.train.batch = 64;
  const auto needed = [&](Recompute recompute) {
    Config changed = c;
    changed.model.vocab_size = 257;
    changed.compute.recompute = recompute;
    Context context{kCpu};
    const ContextScope scope(context);
    return predict_peak(changed, MemoryPass::step, current_target()).total();
  };
  c.compute.memory_limit = (needed(Recompute::blocks) + needed(Recompute::norms)) / 2 >> 20;
  EXPECT_EQ(train(c, recorded).steps, 3);
  ASSERT_EQ(recorded.warnings.size(), 1u);
  EXPECT_NE(recorded.warnings[0].find("recompute = auto chose blocks"), std::string::npos);
  EXPECT_NE(read_file(folder / "run" / "config.toml").find("recompute = \"blocks\""),
            std::string::npos);
}

TEST_F(LimitedTraining, RunningOutIsReportedWithASnapshotInTheRunFolder) {
  Config c = config();
  c.train.batch = 64;
  c.compute.memory_limit = 8;
  try {
    train(c, recorded);
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    expect_parts(error.what(), {"out of memory on cpu: ", "phase forward", "In use by category:",
                                "activations", "The largest of ", "model.layers.",
                                "Predicted need of a training step (batch 64, ctx 32)",
                                "memory_limit has 8.0 MiB", "fits", "batch = ", "memory.pickle"});
  }
  EXPECT_GT(std::filesystem::file_size(folder / "run" / "memory.pickle"), 1000u);
}

// Linux grants more memory than the machine has, and kills the process that uses it.
TEST_F(LimitedTraining, MoreThanTheMachineHasIsRefusedBeforeTheModelIsBuilt) {
  Context context{kCpu};
  const ContextScope scope(context);
  Config c = config();
  c.model.vocab_size = 300;
  EXPECT_NO_THROW(check_machine_memory(c, MemoryPass::step));
  try {
    check_machine_memory(c, MemoryPass::step, {kMiB / 4, "this machine"});
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    expect_parts(error.what(), {"out of memory on cpu", "training step (batch 4, ctx 32): ",
                                "this machine has 256.0 KiB", "batch = 1, accumulate = 4"});
  }
}

TEST(MachineMemory, RanksOnOneMachineShareIt) {
  const MemoryCapacity all = machine_memory();
  EXPECT_GT(all.bytes, 0);
  const auto texts = run_thread_ranks(4, {}, [&](Communicator& group) {
    Context context(kCpu);
    const ContextScope scope(context);
    const MemoryCapacity quarter = machine_memory(RankTeam(&group));
    return cat(quarter.bytes, ' ', quarter.of);
  });
  for (const std::string& text : texts) {
    EXPECT_EQ(text, cat(all.bytes / 4, " each of the 4 ranks that share ", all.of));
  }
}

// Two machines, or two jobs of one machine, each in a control group: a limit is shared by those in
// its group, and a parent's by all below it.
TEST(MachineMemory, EachLimitIsSharedByTheRanksUnderIt) {
  const auto share = [](int64_t machine, int64_t job, int64_t step) {
    return run_thread_ranks(4, {}, [&](Communicator& group) {
      Context context(kCpu);
      const ContextScope scope(context);
      const MemoryCapacity least = machine_memory(
          RankTeam(&group), {{"machine", {machine, "this machine"}},
                             {cat("step ", group.rank()), {step, "the step"}},
                             {cat("job ", group.rank() < 3 ? 1 : 2), {job, "the job"}}});
      return cat(least.bytes, ' ', least.of);
    });
  };
  EXPECT_EQ(share(1000, 600, 300),
            (std::vector<std::string>{"200 each of the 3 ranks that share the job",
                                      "200 each of the 3 ranks that share the job",
                                      "200 each of the 3 ranks that share the job",
                                      "250 each of the 4 ranks that share this machine"}));
  EXPECT_EQ(share(1000, 600, 100), (std::vector<std::string>(4, "100 the step")));
}

// Beside a GPU, what is offloaded must fit.
TEST_F(LimitedTraining, AHostThatIsTooSmallForOffloadIsAnError) {
  const MemoryTarget target = hopper_target();
  Context context(target.device, target.traits);
  const ContextScope scope(context);
  Config c = config();
  c.model.vocab_size = 300;
  EXPECT_NO_THROW(check_machine_memory(c, MemoryPass::step, {1, "this machine"}));
  c.compute.offload = Offload::moments;
  EXPECT_NO_THROW(check_machine_memory(c, MemoryPass::step, {int64_t{1} << 30, "this machine"}));
  try {
    check_machine_memory(c, MemoryPass::step, {kMiB / 8, "this machine"});
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    expect_parts(error.what(),
                 {"out of memory on the host, before any was asked for: offload needs ",
                  "this machine has 128.0 KiB", "offload = moments or none"});
  }
}

TEST_F(LimitedTraining, ABadAllocNamesThePredictedNeed) {
  Context context{kCpu};
  const ContextScope scope(context);
  Config c = config();
  c.model.vocab_size = 300;
  MemoryWatch watch;
  try {
    watch.run(c, MemoryPass::forward, folder.path(), []() -> int { throw std::bad_alloc(); });
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    expect_parts(error.what(),
                 {"out of memory on this machine", "Predicted need of a forward", "Lower batch"});
  }
}

// Work that tolerates out of memory leaves no report.
TEST_F(LimitedTraining, AnotherDevicesFailureIsNotExplained) {
  Context context{kCpu};
  const ContextScope scope(context);
  MemoryWatch watch;
  try {
    watch.run(Config(), MemoryPass::step, folder.path(),
              []() -> int { throw OutOfMemory("out of memory on elsewhere: x"); });
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(), "out of memory on elsewhere: x");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "memory.pickle"));
}

TEST_F(LimitedTraining, AnUnwritableSnapshotDoesNotHideTheReport) {
  Context context{kCpu};
  const ContextScope scope(context);
  context.allocator(kCpu)->set_limit(kMiB);
  MemoryWatch watch;
  try {
    watch.run(Config(), MemoryPass::step, folder / "no" / "folder", [] { zeros({kMiB}); });
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    expect_parts(error.what(), {"full asked for 4.0 MiB", "No snapshot: ", "cannot be created"});
  }
}

}  // namespace
}  // namespace quern
