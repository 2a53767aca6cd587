#include "report/metrics_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

std::string line(int step, double loss) {
  return cat("{\"step\":", step, ",\"loss\":", loss, ",\"time\":", 100 + step, "}\n");
}

class MetricsReaderTest : public testing::Test {
 protected:
  void append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsReaderTest, ReadsWhatMetricsLogWrites) {
  StepMetrics m;
  m.step = 2;
  m.loss = 1.25;
  m.z_loss = 0.125;
  m.grad_norm = 0.5;
  m.lr = 1e-3;
  m.ms = 7.5;
  m.tokens_per_s = 4096.0;
  m.mfu = 0.25;
  m.memory_bytes = int64_t{5} << 32;
  m.skipped = 1;
  m.tokens = 2048;
  m.time = 1700000000.125;
  MetricsLog log(path_, -1);
  log.write_first_step({1, 0.75, "Test GPU", 12345});
  log.write(m);
  log.write_validation(2, 1.5);
  log.write_end(2, "done");
  const RunMetrics run = read_metrics(path_);
  ASSERT_EQ(run.steps.size(), 1u);
  const StepMetrics& r = run.steps[0];
  EXPECT_EQ(std::tie(r.step, r.loss, r.grad_norm, r.lr, r.ms, r.tokens_per_s, r.mfu),
            std::tie(m.step, m.loss, m.grad_norm, m.lr, m.ms, m.tokens_per_s, m.mfu));
  EXPECT_EQ(std::tie(r.z_loss, r.memory_bytes, r.skipped, r.tokens, r.time),
            std::tie(m.z_loss, m.memory_bytes, m.skipped, m.tokens, m.time));
  ASSERT_EQ(run.validations.size(), 1u);
  EXPECT_EQ(run.validations[0].loss, 1.5);
  ASSERT_EQ(run.processes.size(), 1u);
  EXPECT_EQ(run.processes[0].first.device, "Test GPU");
  EXPECT_EQ(run.processes[0].first.parameters, 12345);
  EXPECT_EQ(run.processes[0].first.seconds, 0.75);
  EXPECT_EQ(run.ended, "done");
  EXPECT_TRUE(run.warnings.empty());
}

// A file of a version without these keys, and a loss that was not finite.
TEST_F(MetricsReaderTest, WhatIsNotThereIsUnknown) {
  append("{\"step\":5,\"loss\":null}\n");
  const RunMetrics run = read_metrics(path_);
  ASSERT_EQ(run.steps.size(), 1u);
  EXPECT_TRUE(std::isnan(run.steps[0].loss));
  EXPECT_TRUE(std::isnan(run.steps[0].tokens_per_s));
  EXPECT_EQ(run.steps[0].tokens, 0);
}

TEST_F(MetricsReaderTest, AFileCutInALineIsReadUpToIt) {
  append(line(1, 3.0) + line(2, 2.0) + "{\"step\":3,\"lo");
  const RunMetrics run = read_metrics(path_);
  EXPECT_EQ(run.steps.size(), 2u);
  ASSERT_EQ(run.warnings.size(), 1u);
  EXPECT_EQ(run.warnings[0], path_.string() +
                                 ":3: the last line is cut in the middle; the 2 lines before it "
                                 "are read");
}

TEST_F(MetricsReaderTest, ALastLineThatOnlyLacksItsEndCounts) {
  append(line(1, 3.0) + "{\"step\":2,\"loss\":1.5}");
  const RunMetrics run = read_metrics(path_);
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(run.warnings.empty());
}

TEST_F(MetricsReaderTest, LinesThatAreNoMetricsAreNamedAndLeftOut) {
  append(line(1, 3.0) + "garbage\n[1]\n{\"step\":\"x\"}\n" + line(2, 2.0));
  const RunMetrics run = read_metrics(path_);
  EXPECT_EQ(run.steps.size(), 2u);
  ASSERT_EQ(run.warnings.size(), 3u);
  EXPECT_NE(run.warnings[0].find("metrics.jsonl:2: begins"), std::string::npos);
}

TEST_F(MetricsReaderTest, FollowsAFileThatGrows) {
  MetricsReader reader(path_);
  EXPECT_FALSE(reader.update()) << "there is no file";
  append(line(1, 3.0) + "{\"step\":2,");
  EXPECT_TRUE(reader.update());
  EXPECT_EQ(reader.metrics().steps.size(), 1u);
  EXPECT_FALSE(reader.update()) << "nothing new";
  append("\"loss\":2.5}\n");
  EXPECT_TRUE(reader.update());
  ASSERT_EQ(reader.metrics().steps.size(), 2u);
  EXPECT_EQ(reader.metrics().steps[1].loss, 2.5);
}

// Imitates `quern train --resume`: a new file of the same name, without the later lines.
TEST_F(MetricsReaderTest, BeginsAnewWhenTheFileIsReplaced) {
  append(line(1, 3.0) + line(2, 2.0));
  append("{\"step\":2,\"ended\":\"stopped\"}\n");
  MetricsReader reader(path_);
  reader.update();
  EXPECT_EQ(reader.metrics().ended, "stopped");
  MetricsLog log(path_, 1);
  EXPECT_TRUE(reader.update());
  EXPECT_EQ(reader.metrics().steps.size(), 1u);
  EXPECT_EQ(reader.metrics().ended, "");
}

TEST_F(MetricsReaderTest, AMissingFileIsNamed) {
  expect_error([this] { read_metrics(folder_ / "none"); }, {"none: there is no such file"});
}

}  // namespace
}  // namespace quern
