#include "support/training.h"

#include <gtest/gtest.h>

#include "run/checkpoint.h"
#include "run/make_context.h"
#include "support/files.h"

namespace quern::testing_support {

namespace fs = std::filesystem;

void write_corpus(const fs::path& path, int64_t bytes) {
  const std::vector<std::string> words = {"the ", "mill ", "grinds ", "slow ",
                                          "and ", "fine ", "stone ",  "grain.\n"};
  std::string text;
  uint32_t state = 12345;
  while (static_cast<int64_t>(text.size()) < bytes) {
    state = state * 1664525u + 1013904223u;
    text += words[state >> 29];
  }
  write_file(path, text.substr(0, static_cast<size_t>(bytes)));
}

ModelConfig tiny_model() {
  return {.vocab_size = 300, .context = 48, .d_model = 64, .d_ff = 128, .layers = 2, .heads = 4};
}

Config tiny_config(const fs::path& text, const fs::path& out) {
  Config config;
  config.model.context = 32;
  config.model.d_model = 32;
  config.model.d_ff = 48;
  config.model.layers = 2;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.compute.device = DeviceChoice::cpu;
  config.data.train = text.string();
  config.train.steps = 100;
  config.train.batch = 4;
  config.train.log_every = 1;
  config.train.eval_every = 0;
  config.train.sample_every = 0;
  config.train.checkpoint_every = 0;
  config.optimizer.warmup = 10;
  config.run.out = out.string();
  return config;
}

std::vector<double> Recorded::losses() const {
  std::vector<double> losses;
  for (const StepMetrics& m : steps) losses.push_back(m.loss);
  return losses;
}

TrainResult train(const Config& config, Recorded& recorded, const std::atomic<bool>* stop) {
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  Trainer trainer(config, recorded);
  return trainer.run(stop);
}

namespace {

// Stops the run after `step` steps, as Ctrl-C would.
struct StopAt : Recorded {
  std::atomic<bool> stop{false};
  int64_t step;
  explicit StopAt(int64_t step) : step(step) {}
  void on_progress(int64_t done, double) override { stop = stop || done >= step; }
};

}  // namespace

std::vector<Config> offloaded(const Config& config) {
  std::vector<Config> all;
  for (const Offload offload : {Offload::moments, Offload::optimizer}) {
    if (offload == Offload::optimizer && config.compute.precision != Precision::bf16) continue;
    Config changed = config;
    changed.compute.offload = offload;
    changed.compute.recompute = Recompute::blocks;
    changed.compute.offload_activations = true;
    all.push_back(changed);
  }
  if (config.compute.kernels == KernelKind::fused) {  // with less recomputed, MLPs' hidden layers
    all.push_back(config);
    all.back().compute.recompute = Recompute::swiglu;
    all.back().compute.offload_activations = true;
  }
  return all;
}

void expect_resume_is_exact(Config config, const fs::path& folder) {
  config.run.out = (folder / "whole").string();
  Recorded whole;
  train(config, whole);

  config.run.out = (folder / "parts").string();
  const auto steps = static_cast<size_t>(config.train.steps), middle = steps / 2;
  StopAt first(config.train.steps / 2 - 1);  // results come one step late: the loop stops at half
  const TrainResult half = train(config, first, &first.stop);
  ASSERT_TRUE(half.interrupted);
  ASSERT_EQ(half.steps, config.train.steps / 2);
  config.run.resume = config.run.out;
  Recorded second;
  const TrainResult rest = train(config, second);
  ASSERT_EQ(rest.steps, config.train.steps);

  ASSERT_EQ(whole.steps.size(), steps);
  ASSERT_EQ(first.steps.size() + second.steps.size(), steps);
  for (size_t i = 0; i < steps; ++i) {
    const StepMetrics& expected = whole.steps[i];
    const StepMetrics& found = i < middle ? first.steps[i] : second.steps[i - middle];
    EXPECT_EQ(found.loss, expected.loss) << "step " << i + 1;
    EXPECT_EQ(found.z_loss, expected.z_loss) << "step " << i + 1;
    EXPECT_EQ(found.grad_norm, expected.grad_norm) << "step " << i + 1;
    EXPECT_EQ(found.lr, expected.lr) << "step " << i + 1;
  }
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path in_checkpoint = checkpoint_path("checkpoints", config.train.steps) / file;
    const std::string bytes = read_file(folder / "whole" / in_checkpoint);
    ASSERT_GT(bytes.size(), 10000u);
    EXPECT_TRUE(bytes == read_file(folder / "parts" / in_checkpoint)) << file;
  }
}

void expect_survives_failed_allocations(Config c, Device device, const fs::path& folder,
                                        int64_t stride) {
  c.train.steps = 4;
  c.train.batch = 2;
  c.train.eval_every = c.train.checkpoint_every = c.train.sample_every = 2;
  c.train.eval_batches = 1;
  c.sample.tokens = 4;
  c.run.out = (folder / "whole").string();
  Recorded whole;
  train(c, whole);
  const auto weights_of = [&](const std::string& run) {
    return read_file(folder / run / "checkpoints" / "step_00000004" / "model.safetensors");
  };
  const std::string expected = weights_of("whole");
  int64_t failures = 0;
  for (int64_t k = 0;; k += stride) {
    SCOPED_TRACE(k);
    const std::string name = cat("run", k);
    c.run.out = (folder / name).string();
    c.run.resume = "";
    bool whole_without_sample = false;
    {
      const auto context = make_context(c.compute, 1);
      const ContextScope scope(*context);
      Allocator& allocator = *context->allocator(device);
      const int64_t before = allocator.stats().allocated;
      Recorded recorded;
      allocator.fail_after(k);
      try {
        Trainer(c, recorded).run();
        if (allocator.fail_after(-1) >= 0) break;
        whole_without_sample = true;
        ASSERT_EQ(recorded.warnings.size(), 1u);
        EXPECT_TRUE(recorded.warnings.front().starts_with("no sample after step "))
            << recorded.warnings.front();
        EXPECT_EQ(recorded.samples.size() + 1, whole.samples.size());
      } catch (const OutOfMemory& error) {
        ++failures;
        EXPECT_NE(std::string(error.what()).find("memory"), std::string::npos) << error.what();
      }
      EXPECT_EQ(allocator.stats().allocated, before);
    }
    if (!whole_without_sample) {
      if (fs::exists(folder / name / "config.toml")) c.run.resume = c.run.out;
      Recorded rest;
      EXPECT_EQ(train(c, rest).steps, 4);
      EXPECT_EQ(read_file(folder / name / "samples.txt"), read_file(folder / "whole/samples.txt"));
    }
    EXPECT_TRUE(weights_of(name) == expected);
    fs::remove_all(folder / name);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failures, 5);
}

}  // namespace quern::testing_support
