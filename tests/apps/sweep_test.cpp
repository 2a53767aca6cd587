// `quern sweep`: a grid of small runs, with a failure, a continuation and a stop.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "config/config_print.h"
#include "io/file_lock.h"
#include "run/checkpoint.h"
#include "support/program.h"
#include "support/training.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;
using Args = std::vector<std::string>;
using nlohmann::json;

class SweepProgram : public testing::Test {
 protected:
  void SetUp() override {
    write_corpus(folder_ / "text.txt", 20000);
    Config config = tiny_config(folder_ / "text.txt", "");
    config.train.steps = 10;
    config.train.eval_every = config.train.checkpoint_every = 5;
    save_config(config, folder_ / "tiny.toml");
  }
  Args sweep_args(const Args& more) const {
    Args args = {"sweep", "--config", folder_ / "tiny.toml", "--out", out_};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  void expect_refusal(const Args& more, const std::string& message) const {
    expect_usage_error(sweep_args(more), message);
    EXPECT_FALSE(fs::exists(out_)) << "found only after the sweep began: " << message;
  }
  static std::vector<json> rows_of(const std::string& out) {
    std::vector<json> rows;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);) rows.push_back(json::parse(line));
    return rows;
  }

  TemporaryFolder folder_;
  fs::path out_ = folder_ / "sweep";
};

TEST_F(SweepProgram, RefusesBadGridsBeforeTheFirstRun) {
  expect_refusal({}, "sweep: no --set");
  expect_refusal({"--set"}, "--set has no value");
  expect_refusal({"--set", "lr"}, "--set is 'lr', expected KEY=VALUE,VALUE");
  expect_refusal({"--set", "lrr=1,2"}, "unknown key lrr, did you mean lr?");
  expect_refusal({"--set", "lr=1e-3,,3e-3"}, "--set lr has an empty value");
  expect_refusal({"--set", "lr="}, "--set lr has an empty value");
  expect_refusal({"--set=lr=1e-3,1e-3"}, "--set lr has 1e-3 twice");
  expect_refusal({"--set=lr=1e-3,0.001"}, "lr=1e-3 and lr=0.001 are the same training");
  expect_refusal({"--set", "lr=1e-3", "--set", "lr=3e-3"}, "--set has lr twice");
  expect_refusal({"--set", "lr=1e-3", "--lr", "1"}, "found --lr and --set of the same key");
  expect_refusal({"--set", "lr=1e-3,fast"}, "--lr is fast, expected a number from 0");
  expect_refusal({"--set", "heads=4,3"}, "heads is 3, expected a multiple of kv_heads (2)");
  expect_refusal({"--set", "out=a,b"}, "the sweep names the run folders");
  expect_refusal({"--set", "train=a/b,a b"}, "two combinations have the folder name train=a-b");
  expect_refusal({"--set", "lr=1", "--steps", "many"}, "--steps is many");
  expect_refusal({"--set", "lr=1", "--json=1"}, "--json is '1', expected true or false");
  expect_usage_error({"sweep", "--set", "lr=1", "--train", "x"}, "sweep: no --out");
  const std::string run = folder_ / "a-run";
  fs::create_directories(folder_ / "a-run/checkpoints");
  expect_usage_error({"sweep", "--set", "lr=1", "--train", "x", "--out", run},
                     "a-run is a run, expected a folder for several");
}

// Two of four runs go out of memory: the others are trained, ranked and listed.
TEST_F(SweepProgram, RanksTheRunsAndListsTheFailed) {
  const Args args = sweep_args({"--recompute", "norms", "--batch", "32", "--set",
                                "memory_limit=0,1", "--set", "lr=1e-5,1e-2", "--json"});
  Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  std::vector<json> rows = rows_of(outcome.out);
  ASSERT_EQ(rows.size(), 4u) << outcome.out;
  EXPECT_EQ(rows[0]["lr"], "1e-2") << "ten steps at 1e-5 learn next to nothing";
  EXPECT_EQ(rows[1]["lr"], "1e-5");
  EXPECT_LT(rows[0]["best_val_loss"], rows[1]["best_val_loss"]);
  EXPECT_EQ(rows[1]["rank"], 2);
  EXPECT_EQ(rows[0]["status"], "done");
  for (const size_t i : {size_t{2}, size_t{3}}) {
    EXPECT_FALSE(rows[i].contains("rank"));
    EXPECT_EQ(rows[i]["memory_limit"], "1");
    const std::string status = rows[i]["status"];
    EXPECT_TRUE(status.starts_with("failed: out of memory")) << status;
  }
  EXPECT_TRUE(fs::exists(out_ / "memory_limit=0,lr=1e-2/config.toml"));
  EXPECT_NE(read_file(out_ / "memory_limit=0,lr=1e-2.log").find("10/10"), std::string::npos);
  const std::string page = read_file(out_ / "report.html");
  const size_t first = page.find("\"name\":\"memory_limit=0,lr=1e-2\"");
  const size_t second = page.find("\"name\":\"memory_limit=0,lr=1e-5\"");
  EXPECT_LT(first, second) << "in the order of their ranks";
  EXPECT_NE(second, std::string::npos);

  // A second sweep leaves finished runs as they are, and prints the same result.
  const auto written = fs::last_write_time(out_ / "memory_limit=0,lr=1e-2/metrics.jsonl");
  const json best = rows[0];
  outcome = run(args);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("memory_limit=0,lr=1e-2: done before"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(rows_of(outcome.out)[0], best);
  EXPECT_EQ(fs::last_write_time(out_ / "memory_limit=0,lr=1e-2/metrics.jsonl"), written);
  // Runs of another configuration must not mix with these.
  const Outcome other =
      run(sweep_args({"--set", "memory_limit=0", "--set", "lr=1e-2", "--steps", "20"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("was trained with steps = 10, found 20"), std::string::npos)
      << other.err;
}

TEST_F(SweepProgram, JsonTakesTrueAndFalse) {
  for (const Args& json : {Args{"--json=true"}, Args{"--json", "true"}, Args{"--json", "false"}}) {
    Args args = sweep_args({"--set", "seed=1", "--steps", "1"});
    args.insert(args.begin() + 1, json.begin(), json.end());  // before another flag
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.starts_with("{"), json.back() != "false") << outcome.out;
  }
}

TEST_F(SweepProgram, ResumesWhatIsUnfinished) {
  const Args args = sweep_args({"--set", "seed=1,2"});
  const Outcome whole = run(args);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(run(args).err.find("seed=2: done before"), std::string::npos);
  // One run looks killed after step 7, with the checkpoint of step 5, another killed before its
  // first checkpoint. The first has its whole log.
  const fs::path cut = out_ / "seed=1", begun = out_ / "seed=2";
  const std::string weights = read_file(cut / "checkpoints/step_00000010/model.safetensors");
  set_aside_checkpoints_after(cut / "checkpoints", 5);
  fs::remove_all(begun / "checkpoints");
  const std::string metrics = read_file(begun / "metrics.jsonl");
  write_file(begun / "metrics.jsonl", metrics.substr(0, metrics.find("{\"step\":8")));
  const Outcome again = run(args);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err.find("done before"), std::string::npos) << again.err;
  EXPECT_NE(read_file(out_ / "seed=1.log").find("after step 5"), std::string::npos);
  EXPECT_EQ(read_file(cut / "checkpoints/step_00000010/model.safetensors"), weights);
  EXPECT_TRUE(fs::exists(begun / "checkpoints/step_00000010"));
}

// Its last checkpoint is there, but its log does not say that it is done: it was stopped in its
// last validation.
TEST_F(SweepProgram, ARunWithoutItsLastValidationIsNotDone) {
  const Args args = sweep_args({"--set", "seed=1"});
  ASSERT_EQ(run(args).code, 0);
  const fs::path log = out_ / "seed=1" / "metrics.jsonl";
  const std::string whole = read_file(log);
  write_file(log, whole.substr(0, whole.rfind("{\"step\":10,\"val_loss\"")));
  ASSERT_LT(read_file(log).size(), whole.size());
  const Outcome again = run(args);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err.find("done before"), std::string::npos) << again.err;
  EXPECT_NE(read_file(log).find("{\"step\":10,\"val_loss\""), std::string::npos);
}

// A training in the folder has no checkpoint yet.
TEST_F(SweepProgram, ARunInUseIsNotRemoved) {
  const Args args = sweep_args({"--set", "seed=1"});
  ASSERT_EQ(run(args).code, 0);
  const fs::path folder = out_ / "seed=1";
  fs::remove_all(folder / "checkpoints");
  fs::create_directory(folder / "checkpoints");
  const FileLock lock(folder / ".lock", "in use");
  const Outcome again = run(args);
  EXPECT_EQ(again.code, 1) << again.err;
  EXPECT_NE(again.err.find("seed=1: failed"), std::string::npos) << again.err;
  EXPECT_TRUE(fs::exists(folder / "config.toml"));
}

TEST_F(SweepProgram, ASignalSavesAndStops) {
  Args args = sweep_args({"--set", "seed=1,2", "--steps", "1000000"});
  args.insert(args.begin(), program_path());
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  const std::string err = folder_ / "err";
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  const fs::path metrics = out_ / "seed=1/metrics.jsonl";
  for (int wait = 0; wait < 60000 && std::ranges::count(read_file(metrics), '\n') < 3; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
  EXPECT_NE(read_file(err).find("Go on with the same command"), std::string::npos);
  EXPECT_TRUE(latest_checkpoint(out_ / "seed=1/checkpoints"));
  EXPECT_FALSE(fs::exists(out_ / "seed=2"));
}

}  // namespace
}  // namespace quern
