#include "report/watch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/config_print.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Lines = std::vector<std::string>;

std::string joined(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class WatchTest : public testing::Test {
 protected:
  void SetUp() override {
    Config config;
    config.train.steps = 200;
    fs::create_directories(folder_ / "run");
    save_config(config, folder_ / "run" / "config.toml");
  }
  static StepMetrics step(int64_t n) {
    StepMetrics m;
    m.step = n;
    m.loss = 200.0 / static_cast<double>(n);
    m.grad_norm = 0.75;
    m.lr = 1e-3;
    m.ms = 100.0;
    m.tokens_per_s = 1234.0;
    m.mfu = 0.425;
    m.memory_bytes = 3 << 20;
    m.time = 1000.0 + static_cast<double>(n);
    return m;
  }
  TemporaryFolder folder_;
  fs::path log_path_ = folder_ / "run" / "metrics.jsonl";
};

TEST(TextPlot, DrawsTheCurve) {
  EXPECT_EQ(text_plot({3.0, 2.0, 1.0}, 12, 3, false), (Lines{"  3.0000 *  ",  //
                                                             "          * ",  //
                                                             "  1.0000   *"}));
  // Braille has 2 x 4 dots in a character, here 4 x 8 in all: a line from corner to corner.
  EXPECT_EQ(text_plot({1.0, 0.0}, 11, 2, true),
            (Lines{"  1.0000 \u28A3 ", "  0.0000 \u2808\u2886"}));
}

TEST(TextPlot, NeedsTwoFiniteValuesAndRoom) {
  EXPECT_TRUE(text_plot({1.0}, 40, 5, false).empty());
  EXPECT_TRUE(text_plot({1.0, std::nan("")}, 40, 5, false).empty());
  EXPECT_TRUE(text_plot({1.0, 2.0}, 5, 5, false).empty());
  EXPECT_EQ(text_plot({1.0, 1.0}, 40, 5, true).size(), 5u) << "a flat curve";
}

TEST(Clipped, CountsCharactersAndDropsControls) {
  EXPECT_EQ(clipped("h\u00e9llo", 3), "h\u00e9l");
  EXPECT_EQ(clipped("a\tb\nc\033[2Jd", 80), "a b c\uFFFD[2Jd");
  EXPECT_EQ(clipped("\xC3(\xFF"
                    "d",
                    3),
            "\uFFFD(\uFFFD");
  EXPECT_EQ(clipped("\u4f60\u597d!", 4), "\u4f60\u597d");  // two columns each
  EXPECT_EQ(clipped("\u4f60\u597d", 3), "\u4f60");
  EXPECT_EQ(clipped("e\u0301o!", 2), "e\u0301o");  // a combining mark takes none
}

TEST_F(WatchTest, ShowsARun) {
  MetricsLog log(log_path_, -1);
  for (int64_t n = 10; n <= 100; n += 10) log.write(step(n));
  log.write_validation(100, 2.5);
  write_file(folder_ / "run" / "samples.txt", "--- step 50\nold\n--- step 100\n\nTo be\n");
  const RunWatch watch(folder_ / "run");
  const std::string screen = joined(watch.screen({80, 24, true}, watch.metrics().last_time + 5));
  for (const char* part :
       {"run  running", "step 100/200", "ETA 10s", "loss 2.0000", "validation 2.5000 at step 100",
        "lr 1.00e-03", "norm 0.750", "100.0 ms", "1234 tokens/s", "mfu 42.5 %", "3.0 MiB",
        " 20.0000 ", "  2.0000 ", "sample at step 100", "  To be"}) {
    EXPECT_NE(screen.find(part), std::string::npos) << part << " is not in\n" << screen;
  }
  EXPECT_EQ(screen.find("old"), std::string::npos);
  EXPECT_NE(
      joined(watch.screen({80, 24, true}, watch.metrics().last_time + 120)).find("silent for"),
      std::string::npos);
  for (const ScreenSize size : {ScreenSize{20, 6, true}, {200, 60, false}, {1, 1, true}}) {
    for (const std::string& line : watch.screen(size, 0.0)) {
      EXPECT_EQ(clipped(line, size.columns), line) << "wider than " << size.columns;
    }
  }
}

TEST_F(WatchTest, AnEmptyRunSaysSo) {
  const RunWatch watch(folder_ / "run");
  EXPECT_NE(watch.screen({}, 0.0)[0].find("no metrics yet"), std::string::npos);
  expect_error([this] { RunWatch(folder_ / "nowhere"); }, {"there is no such folder"});
}

// The seal of a file edited by hand does not fit.
TEST_F(WatchTest, ADamagedConfigurationHidesTheNumberOfSteps) {
  const fs::path file = folder_ / "run" / "config.toml";
  std::string text = read_file(file);
  text.replace(text.find("steps = 200"), 11, "steps = 300");
  write_file(file, text);
  MetricsLog(log_path_, -1).write(step(100));
  const RunWatch watch(folder_ / "run");
  EXPECT_EQ(watch.screen({80, 24, true}, 0.0)[1].substr(0, 8), "step 100");
}

TEST_F(WatchTest, TellsEachRecordOnceAndTheEnd) {
  RunWatch watch(folder_ / "run");
  EXPECT_TRUE(watch.new_lines().empty());
  {
    MetricsLog log(log_path_, -1);
    log.write(step(100));
    log.write_validation(100, 2.5);
    watch.update();
    const Lines lines = watch.new_lines();
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0],
              "step    100/200  loss 2.0000  norm 0.750  lr 1.00e-03  100.0 ms  1234 tokens/s  "
              "mfu 42.5 %  3.0 MiB");
    EXPECT_EQ(lines[1], "step    100/200  validation loss 2.5000");
    EXPECT_TRUE(watch.new_lines().empty());
    StepMetrics on_cpu = step(200);
    on_cpu.mfu = 0.0;
    log.write(on_cpu);
    log.write_end(200, "done");
  }
  EXPECT_FALSE(watch.ended());
  watch.update();
  EXPECT_TRUE(watch.ended());
  const Lines lines = watch.new_lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].ends_with("1234 tokens/s  3.0 MiB")) << lines[0];
  EXPECT_EQ(lines[1], "done");
}

// The run is stopped and resumed from before its last record: repeated steps are printed again.
TEST_F(WatchTest, FollowsAResumedRun) {
  RunWatch watch(folder_ / "run");
  MetricsLog(log_path_, -1).write(step(10));
  {
    MetricsLog log(log_path_, 10);
    log.write(step(20));
    log.write_end(20, "stopped");
  }
  watch.update();
  EXPECT_EQ(watch.new_lines().size(), 3u);
  MetricsLog log(log_path_, 10);
  watch.update();
  EXPECT_FALSE(watch.ended());
  EXPECT_TRUE(watch.new_lines().empty());
  StepMetrics again = step(20);
  again.time += 4e9;
  log.write(again);
  watch.update();
  EXPECT_EQ(watch.new_lines().size(), 1u);
}

}  // namespace
}  // namespace quern
