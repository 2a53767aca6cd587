#include "run/metrics.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "support/faults.h"
#include "support/file_size_limit.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// The history of a run must not be replaced because it cannot be read.
TEST(MetricsLog, AnUnreadableFileStays) {
  const TemporaryFolder folder;
  const fs::path path = write_file(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2.0}\n");
  {
    const FaultyCalls unreadable([&](const std::string& call, const std::string& file) {
      return call == "open" && file == path ? EIO : 0;
    });
    expect_error([&] { MetricsLog(path, 5); }, {path.string(), "Input/output error"});
  }
  EXPECT_EQ(read_file(path), "{\"step\":1,\"loss\":2.0}\n");
  fs::rename(path, folder / "aside");
  fs::create_symlink("metrics.jsonl", path);
  expect_error([&] { MetricsLog(path, 5); }, {path.string(), "Too many levels"});
  EXPECT_TRUE(fs::is_symlink(path));
}

TEST(MetricsLog, LinesThatAreNoMetricsAreDropped) {
  const TemporaryFolder folder;
  const std::string good = "{\"step\":1,\"loss\":2.0}\n";
  const fs::path path = write_file(folder / "metrics.jsonl",
                                   good + "7\n[]\n{\"step\":\"x\"}\nnull\n{\"loss\":1}\n{\"ste");
  MetricsLog log(path, 5);
  EXPECT_EQ(read_file(path), good);
}

TEST(MetricsLog, AFullDiskLeavesNoPartOfALine) {
  const TemporaryFolder folder;
  const fs::path path = folder / "metrics.jsonl";
  MetricsLog log(path, -1);
  log.write_validation(1, 2.0);
  const std::string before = read_file(path);
  {
    const FileSizeLimit limit(before.size() + 5);
    expect_error([&] { log.write_validation(2, 2.0); }, {path.string(), "File too large"});
  }
  EXPECT_EQ(read_file(path), before);
  log.sync();
}

// Runs without a z-loss have the lines of earlier versions.
TEST(MetricsLog, OnlyRunsWithAZLossHaveItsKey) {
  const TemporaryFolder folder;
  MetricsLog log(folder / "metrics.jsonl", -1);
  StepMetrics m;
  m.step = 1;
  m.loss = 2.5;
  log.write(m);
  m.z_loss = 0.25;
  log.write(m);
  const std::string begin =
      "{\"step\":1,\"loss\":2.5,\"grad_norm\":0.0,\"lr\":0.0,\"ms\":0.0,\"tokens_per_s\":0.0,"
      "\"mfu\":0.0,\"memory_bytes\":0,\"skipped\":0,\"tokens\":0,";
  EXPECT_EQ(read_file(folder / "metrics.jsonl"),
            cat(begin, "\"time\":0.0}\n", begin, "\"z_loss\":0.25,\"time\":0.0}\n"));
}

TEST(MetricsLog, TheStateOfAStepIsWhatItsLinesSay) {
  const TemporaryFolder folder;
  const fs::path path =
      write_file(folder / "metrics.jsonl",
                 "{\"step\":1,\"val_loss\":null}\n{\"step\":1,\"ended\":\"stopped\"}\n"
                 "{\"step\":2,\"val_loss\":1.5}\n{\"step\":2,\"ended\":\"done\"}\n"
                 "{\"step\":2,\"loss\":1}\n");
  EXPECT_EQ(read_logged_state(path, 1).validation, std::nullopt);
  EXPECT_FALSE(read_logged_state(path, 1).done);
  EXPECT_EQ(read_logged_state(path, 2).validation, 1.5);
  EXPECT_TRUE(read_logged_state(path, 2).done);
}

}  // namespace
}  // namespace quern
