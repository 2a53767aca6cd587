// `quern watch` and `quern report` as a user runs them, and watch during a run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "config/config_print.h"
#include "run/metrics.h"
#include "support/program.h"
#include "support/terminal.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

class WatchProgram : public testing::Test {
 protected:
  void SetUp() override {
    Config config;
    config.train.steps = 3;
    fs::create_directories(run_);
    save_config(config, run_ / "config.toml");
  }
  // Starts `quern watch RUN`, with its output in a file.
  void start(const std::string& interval = "0.02") {
    std::vector<std::string> args = {program_path(), "watch", run_, "--interval", interval};
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    child_ = fork();
    if (child_ != 0) return;
    const int output = open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(output, STDOUT_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  void TearDown() override {
    if (child_ > 0 && kill(child_, SIGKILL) == 0) waitpid(child_, nullptr, 0);
  }
  // Waits until the output holds the text; false after 20 s.
  bool prints(const std::string& text) const {
    for (int wait = 0; wait < 2000; ++wait) {
      if (read_file(out_).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  // Whether it ends within 20 s, with exit code 0.
  bool ends() {
    for (int wait = 0; wait < 2000; ++wait) {
      int status = 0;
      if (waitpid(child_, &status, WNOHANG) == child_) {
        child_ = 0;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  static StepMetrics step(int64_t n) {
    StepMetrics m;
    m.step = n;
    m.loss = 10.0 / static_cast<double>(n);
    m.time = unix_time();
    return m;
  }

  TemporaryFolder folder_;
  fs::path run_ = folder_ / "run", out_ = folder_ / "out";
  pid_t child_ = 0;
};

TEST_F(WatchProgram, FollowsTheFileAndEndsWithTheRun) {
  start();
  MetricsLog log(run_ / "metrics.jsonl", -1);
  log.write(step(1));
  EXPECT_TRUE(prints("step      1/3  loss 10.0000"));
  std::ofstream(run_ / "metrics.jsonl", std::ios::app) << "{\"step\":2,\"loss\"";
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(read_file(out_).find("step      2/3"), std::string::npos) << "half a line was shown";
  std::ofstream(run_ / "metrics.jsonl", std::ios::app) << ":5.0}\n";
  EXPECT_TRUE(prints("step      2/3  loss 5.0000"));
  EXPECT_EQ(waitpid(child_, nullptr, WNOHANG), 0) << "the run is not at its end";
  log.write(step(3));
  log.write_end(3, "done");
  EXPECT_TRUE(prints("done\n"));
  EXPECT_TRUE(ends());
  EXPECT_EQ(read_file(out_).find('\033'), std::string::npos) << "terminal codes in a pipe";
}

TEST_F(WatchProgram, CtrlCEndsIt) {
  MetricsLog(run_ / "metrics.jsonl", -1).write(step(1));
  for (const char* interval : {"0.02", "3600"}) {
    start(interval);
    ASSERT_TRUE(prints("step      1/3"));
    ASSERT_EQ(kill(child_, SIGINT), 0);
    EXPECT_TRUE(ends()) << interval;
    fs::remove(out_);
  }
}

// The alternate screen during the run; the final state on the normal screen.
TEST_F(WatchProgram, ATerminalGetsAScreen) {
  {
    MetricsLog log(run_ / "metrics.jsonl", -1);
    for (int64_t n = 1; n <= 3; ++n) log.write(step(n));
    log.write_end(3, "done");
  }
  const auto [code, text] = run_in_terminal({"watch", run_}, 60);
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(text.starts_with("\033[?1049h\033[?25l")) << text;
  const size_t back = text.find("\033[?25h\033[?1049l");
  ASSERT_NE(back, std::string::npos) << "the terminal is left as it was not";
  EXPECT_LT(text.find("step 3/3"), back);
  EXPECT_NE(text.find("step 3/3", back), std::string::npos) << text;
}

TEST_F(WatchProgram, OnceShowsWhatThereIs) {
  Outcome outcome = run({"watch", run_, "--once"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no metrics yet"), std::string::npos) << outcome.out;
  {
    MetricsLog log(run_ / "metrics.jsonl", -1);
    log.write(step(1));
    log.write(step(2));
  }
  std::ofstream(run_ / "metrics.jsonl", std::ios::app) << "{\"step\":3,\"lo";
  outcome = run({"watch", run_, "--once"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.out.find("step 2/3"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("metrics.jsonl:3: the last line is cut"), std::string::npos);
}

TEST_F(WatchProgram, RefusesBadArguments) {
  expect_usage_error({"watch"}, "watch: expected one run folder");
  expect_usage_error({"watch", run_, "--interval", "0"}, "--interval is 0, expected a number from");
  expect_usage_error({"watch", run_, "--batch", "3"}, "watch: batch has no meaning here");
  const Outcome outcome = run({"watch", folder_ / "nowhere"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("there is no such folder"), std::string::npos) << outcome.err;
}

TEST_F(WatchProgram, ReportRefusesBadArguments) {
  expect_usage_error({"report"}, "report: no run folder");
  expect_usage_error({"report", run_, "--batch", "3"}, "report: batch has no meaning here");
  Outcome outcome = run({"report", run_, "--out", folder_ / "page.html"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("has no metrics"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "page.html"));
  MetricsLog(run_ / "metrics.jsonl", -1).write(step(1));
  outcome = run({"report", run_, "--out", "/no/such/folder/page.html"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("/no/such/folder/page.html"), std::string::npos) << outcome.err;
  outcome = run({"report", run_, "--out", folder_ / "page.html"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("page.html: 1 run, "), std::string::npos) << outcome.out;
}

TEST_F(WatchProgram, ReportReplacesOnlyAPage) {
  const fs::path log = run_ / "metrics.jsonl", page = folder_ / "page.html";
  MetricsLog(log, -1).write(step(1));
  const std::string before = read_file(log);
  const Outcome refused = run({"report", run_, "--out", log});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("metrics.jsonl, which exists and is no HTML page"), std::string::npos)
      << refused.err;
  EXPECT_EQ(read_file(log), before);
  EXPECT_EQ(run({"report", run_, "--out", page}).code, 0);
  EXPECT_EQ(run({"report", run_, "--out", page}).code, 0) << "an earlier page";
}

}  // namespace
}  // namespace quern
