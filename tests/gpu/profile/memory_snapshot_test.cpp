// The recorder and its snapshot on a GPU: with captured steps, and at out of memory.
#include "profile/memory/memory_snapshot.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "optim/adamw.h"
#include "run/make_context.h"
#include "support/program.h"
#include "support/training.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "train/memory_report.h"

namespace quern {
namespace {

using namespace testing_support;

struct GpuMemory : testing::Test {
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  TemporaryFolder folder;
};

// Runs the checker on a snapshot of the trace, if there is a Python.
void expect_consistent(const MemoryTrace& trace, const std::filesystem::path& file) {
  write_memory_snapshot(trace, file);
  if (run_shell("command -v python3").code != 0) return;
  const Outcome outcome =
      run_shell("python3 tests/tools/check_memory_snapshot.py '" + file.string() + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto seen = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(seen["allocated"], trace.stats.allocated);
  EXPECT_EQ(seen["reserved"], trace.stats.reserved);
  EXPECT_EQ(seen["live"], trace.stats.allocations);
}

TEST_F(GpuMemory, ACapturedRunIsRecordedToTheByte) {
  for (const bool graph : {false, true}) {
    Config config = tiny_config("", "");
    config.model.vocab_size = 257;
    config.compute.device = DeviceChoice::cuda;
    config.compute.precision = Precision::bf16;
    config.compute.graph = graph;
    const auto context = make_context(config.compute, 1);
    const ContextScope scope(*context);
    Allocator& allocator = *context->allocator(context->device());
    allocator.reset_peak();
    MemoryRecorder recorder;
    ModelInstance instance(config.model, config.compute, InitScheme::normal, true, 1);
    AdamW optimizer(instance.arena, {});
    TrainingStep step(instance, optimizer, graph);
    const Tensor tokens = random_integers({4, 32}, 257);
    for (int i = 0; i < 4; ++i) step.run(tokens, tokens, {});
    const size_t allocations = recorder.trace().allocations.size();
    step.run(tokens, tokens, {});
    const MemoryTrace trace = recorder.trace();
    if (graph) {
      EXPECT_EQ(trace.allocations.size(), allocations) << "a replay allocates nothing";
    }
    const MemoryPeak peak = peak_of(trace);
    EXPECT_EQ(peak.bytes, allocator.stats().peak_allocated);
    EXPECT_GE(peak.by_category[static_cast<size_t>(MemoryCategory::workspace)], 32 << 20)
        << "cuBLASLt's workspace was there before";
    expect_consistent(trace, folder / "memory.pickle");
  }
}

// Activations of a batch beyond any GPU: the report comes at once, and names the forward.
TEST_F(GpuMemory, RunningOutOfMemoryIsExplainedWithinSeconds) {
  write_corpus(folder / "text.txt", 20000);
  Config config = tiny_config(folder / "text.txt", folder / "run");
  config.compute.device = DeviceChoice::cuda;
  config.train.batch = 1 << 20;
  config.model.d_model = 512;
  config.model.d_ff = 2048;
  config.model.layers = 8;
  Recorded recorded;
  const auto context = make_context(config.compute, 1);
  const ContextScope scope(*context);
  Trainer trainer(config, recorded);
  const auto start = std::chrono::steady_clock::now();
  try {
    trainer.run();
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const std::string message = error.what();
    for (const char* part : {"out of memory on cuda:0: ", "phase forward", "activations",
                             "Predicted need of a training step", "cuda:0 has", "batch = "}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
    }
    EXPECT_LT(took.count(), 5.0) << "with what led to it";
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "run" / "memory.pickle"));
}

}  // namespace
}  // namespace quern
