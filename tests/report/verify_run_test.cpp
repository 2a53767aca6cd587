#include "report/verify_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/safetensors.h"
#include "run/checkpoint.h"
#include "support/program.h"
#include "support/training.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// A run of four steps with checkpoints at 2 and 4.
class VerifyRun : public testing::Test {
 protected:
  VerifyRun() {
    const fs::path text = folder_ / "text.txt";
    write_corpus(text, 20000);
    Config config = tiny_config(text, run_);
    config.train.steps = 4;
    config.train.checkpoint_every = 2;
    config.train.eval_every = 2;
    config.train.keep = 2;
    Recorded recorded;
    train(config, recorded);
  }

  fs::path checkpoint(int64_t step) const { return checkpoint_path(run_ / "checkpoints", step); }
  // The damaged file of a run with one; fails otherwise.
  RunFileCheck damaged() const {
    const RunCheck check = verify_run(run_);
    EXPECT_EQ(check.damaged(), 1);
    const auto row = std::ranges::find_if(check.files, [](auto& r) { return !r.damage.empty(); });
    return row == check.files.end() ? RunFileCheck{} : *row;
  }
  void expect_damage(const std::string& file, const std::string& damage) const {
    const RunFileCheck row = damaged();
    EXPECT_EQ(row.file, file);
    EXPECT_NE(row.damage.find(damage), std::string::npos) << row.damage;
  }
  void change(const fs::path& file, const std::string& from, const std::string& to) const {
    std::string text = read_file(file);
    ASSERT_NE(text.find(from), std::string::npos) << text;
    write_file(file, text.replace(text.find(from), from.size(), to));
  }

  TemporaryFolder folder_;
  const fs::path run_ = folder_ / "run";
};

TEST_F(VerifyRun, AWholeRunHasNoDamage) {
  const RunCheck check = verify_run(run_);
  EXPECT_EQ(check.damaged(), 0);
  std::vector<std::string> files;
  for (const RunFileCheck& row : check.files) files.push_back(row.file);
  EXPECT_EQ(files,
            (std::vector<std::string>{"config.toml", "metrics.jsonl", "checkpoints/step_00000002",
                                      "checkpoints/step_00000004", "checkpoints/best"}));
  EXPECT_EQ(check.files[1].found, "4 steps, 2 validations; ended: done");
  EXPECT_EQ(check.newest_intact, "checkpoints/step_00000004");
}

TEST_F(VerifyRun, ADamagedCheckpointIsNotTheOneToResume) {
  std::string bytes = read_file(checkpoint(4) / "optimizer.safetensors");
  bytes.back() ^= 1;
  write_file(checkpoint(4) / "optimizer.safetensors", bytes);
  expect_damage("checkpoints/step_00000004", "optimizer.safetensors: checksum is ");
  EXPECT_EQ(verify_run(run_).newest_intact, "checkpoints/step_00000002");
}

TEST_F(VerifyRun, WeightsThatAreNotFiniteAreDamage) {
  const Checkpoint good = open_checkpoint(checkpoint(4));
  CheckpointContents contents{4, {}, {}, good.state_json, ""};
  for (const std::string& name : good.weights.names()) {
    contents.weights.push_back(good.weights.tensor(name));
  }
  std::vector<std::byte> with_nan(contents.weights[1].data.begin(), contents.weights[1].data.end());
  std::fill(with_nan.end() - 4, with_nan.end(), std::byte{0xff});
  contents.weights[1].data = with_nan;
  write_checkpoint(run_ / "checkpoints", contents);
  expect_damage("checkpoints/step_00000004",
                cat("tensor '", contents.weights[1].name, "' holds a NaN or an infinity"));
}

TEST_F(VerifyRun, ACheckpointWithoutAWeightOfItsModelIsDamaged) {
  const Checkpoint good = open_checkpoint(checkpoint(4));
  const std::string name = good.weights.names()[1];
  write_checkpoint(run_ / "checkpoints", {4, {good.weights.tensor(name)}, {}, good.state_json, ""});
  expect_damage("checkpoints/step_00000004", "model.safetensors");
}

TEST_F(VerifyRun, EachOtherFileIsChecked) {
  const std::string config = read_file(run_ / "config.toml");
  change(run_ / "config.toml", "steps = 4", "steps = 5");
  expect_damage("config.toml", "checksum");
  write_file(run_ / "config.toml", config);

  const std::string metrics = read_file(run_ / "metrics.jsonl");
  change(run_ / "metrics.jsonl", "{\"step\":3,\"loss\"", "{\"step\":2,\"loss\"");
  expect_damage("metrics.jsonl", "step 2 follows step 2");
  write_file(run_ / "metrics.jsonl", metrics.substr(0, metrics.size() - 5));
  expect_damage("metrics.jsonl", "the last line is cut in the middle");
  write_file(run_ / "metrics.jsonl", metrics);

  const std::string best = read_file(run_ / "checkpoints/best");
  change(run_ / "checkpoints/best", "step_0", "step_1");
  expect_damage("checkpoints/best", "checksum");
  write_file(run_ / "checkpoints/best", best);
  mark_kept(run_ / "checkpoints", 3, "by hand");
  expect_damage("checkpoints/kept", "step_00000003: is recorded as the kept checkpoint");
}

TEST_F(VerifyRun, AnotherModelThanTheConfigurationsIsDamage) {
  // An edit by hand: without its last line, the seal.
  std::string config = read_file(run_ / "config.toml");
  config.erase(config.rfind('\n', config.size() - 2) + 1);
  write_file(run_ / "config.toml", config);
  EXPECT_EQ(verify_run(run_).damaged(), 0);
  change(run_ / "config.toml", "layers = ", "layers = 1");
  const RunCheck check = verify_run(run_);
  EXPECT_EQ(check.damaged(), 2);
  EXPECT_NE(check.files[2].damage.find("is of a model with layers = "), std::string::npos)
      << check.files[2].damage;
  EXPECT_FALSE(check.newest_intact);
}

TEST_F(VerifyRun, WhatAKilledProcessLeftIsNamed) {
  fs::create_directory(fs::path(checkpoint(6)) += ".tmp");
  const RunCheck check = verify_run(run_);
  EXPECT_EQ(check.damaged(), 0);
  EXPECT_EQ(check.files.back().file, "checkpoints/step_00000006.tmp");
  EXPECT_TRUE(fs::exists(fs::path(checkpoint(6)) += ".tmp"));
}

TEST_F(VerifyRun, TheProgramPrintsALineForEach) {
  const Outcome whole = run({"verify-run", run_});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("0 of 5 damaged; newest intact checkpoint: checkpoints/step_00000004\n"),
            std::string::npos)
      << whole.out;
  write_file(checkpoint(4) / "manifest.json", "{}");
  const Outcome damaged = run({"verify-run", run_});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_NE(damaged.out.find("checkpoints/step_00000004   DAMAGED  "), std::string::npos)
      << damaged.out;
  expect_usage_error({"verify-run"}, "verify-run: found 0 arguments, expected one run folder");
  EXPECT_EQ(run({"verify-run", folder_ / "none"}).code, 1);
}

}  // namespace
}  // namespace quern
