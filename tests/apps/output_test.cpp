// The program's standard descriptors: lost output, closed descriptors, control characters, and
// inputs that would block.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include "config/config_print.h"
#include "support/program.h"
#include "support/terminal.h"
#include "support/training.h"

namespace quern {
namespace {

using namespace testing_support;

class ProgramOutput : public testing::Test {
 protected:
  void SetUp() override {
    write_corpus(folder_ / "text.txt", 20000);
    save_config(tiny_config(folder_ / "text.txt", ""), folder_ / "tiny.toml");
  }
  std::string train(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {
        "train", "--config", folder_ / "tiny.toml", "--out", folder_ / name, "--steps", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return program(args);
  }
  void expect_whole(const std::string& name) const {
    EXPECT_TRUE(std::filesystem::exists(folder_ / name / "checkpoints/step_00000002")) << name;
    std::istringstream lines(read_file(folder_ / name / "metrics.jsonl"));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << name << ": " << line;
    }
    EXPECT_GE(count, 2) << name;
  }

  TemporaryFolder folder_;
};

TEST_F(ProgramOutput, LostOutputIsAnError) {
  ASSERT_EQ(run_shell(train("run")).code, 0);
  const std::string run = folder_ / "run", text = folder_ / "text.txt";
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"help"},
                                             {"version"},
                                             {"info"},
                                             {"memory", "--predict", "--size", "shakespeare-cpu"},
                                             {"generate", run, "--tokens", "4"},
                                             {"watch", run, "--once"},
                                             {"watch", run},
                                             {"report", run, "--out", folder_ / "report.html"},
                                             {"tokenizer", "info", "bytes"},
                                             {"tokenizer", "encode", "bytes", "--text", "a"},
                                             {"tokenizer", "decode", "bytes", "97"},
                                             {"eval", run, text},
                                             {"completion", "bash"}}) {
    const Outcome outcome = run_shell(program(args) + " >/dev/full");
    EXPECT_EQ(outcome.code, 1) << args[0] << outcome.err;
    EXPECT_NE(outcome.err.find("quern: cannot write"), std::string::npos)
        << args[0] << ": " << outcome.err;
  }
  const Outcome outcome = run_shell(train("full") + " >/dev/full");
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  expect_whole("full");
}

TEST_F(ProgramOutput, ClosedDescriptorsMixNothing) {
  EXPECT_EQ(run_shell(train("in") + " <&-").code, 0);
  expect_whole("in");
  const Outcome closed = run_shell(train("out") + " >&-");
  EXPECT_EQ(closed.code, 1);
  EXPECT_NE(closed.err.find("cannot write to standard output"), std::string::npos) << closed.err;
  expect_whole("out");
  EXPECT_EQ(run_shell(train("err") + " 2>&-").code, 0);
  expect_whole("err");
  EXPECT_EQ(run_shell(train("all") + " <&- >&- 2>&-").code, 1);
  expect_whole("all");
}

TEST_F(ProgramOutput, MessagesCannotCommandTheTerminal) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"\033[31mx"},
                                             {"train", "--\033[31mx", "1"},
                                             {"train", "--steps", "\033[31m"},
                                             {"tokenizer", "info", "no/\033[31m"},
                                             {"watch", "no/\033[31m"}}) {
    const Outcome outcome = run(args);
    EXPECT_NE(outcome.code, 0);
    EXPECT_EQ(outcome.err.find('\033'), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("\uFFFD[31m"), std::string::npos) << outcome.err;
  }
  const std::string run_name = "r\033[31m";  // warnings too
  ASSERT_EQ(run_shell(train(run_name)).code, 0);
  write_file(folder_ / run_name / "metrics.jsonl", "no JSON\n{\"step\": 1, \"loss\": 2}\n");
  const Outcome watched = run({"watch", folder_ / run_name, "--once"});
  EXPECT_NE(watched.err.find("expected a JSON object"), std::string::npos) << watched.err;
  EXPECT_EQ(watched.err.find('\033'), std::string::npos) << watched.err;
}

TEST_F(ProgramOutput, TextInATerminalIsPrintable) {
  ASSERT_EQ(run_shell(train("run")).code, 0);
  const auto generated =
      run_in_terminal({"generate", folder_ / "run", "--prompt", "a\033[31mb", "--tokens", "2"}, 80);
  EXPECT_EQ(generated.code, 0) << generated.text;
  EXPECT_NE(generated.text.find("a\uFFFD[31mb"), std::string::npos) << generated.text;
  EXPECT_EQ(generated.text.find('\033'), std::string::npos) << generated.text;
  write_file(folder_ / "escape.txt", "one\033[31m text");
  ASSERT_EQ(run({"data", "prepare", folder_ / "escape.txt", "--out", folder_ / "data",
                 "--validation_fraction", "0"})
                .code,
            0);
  const auto inspected = run_in_terminal({"data", "inspect", folder_ / "data"}, 80);
  EXPECT_NE(inspected.text.find("one\uFFFD[31m text"), std::string::npos) << inspected.text;
  EXPECT_EQ(inspected.text.find('\033'), std::string::npos) << inspected.text;
}

TEST_F(ProgramOutput, ProgressFitsTheTerminal) {
  const auto trained = [&](const std::string& name, const std::vector<std::string>& environment) {
    return run_in_terminal({"tokenizer", "train", folder_ / "text.txt", "--vocab", "300", "--out",
                            folder_ / name},
                           8, environment)
        .text;
  };
  const std::string text = trained("clipped", {});
  EXPECT_NE(text.find("\r\033[Kcountin\r\033[K"), std::string::npos) << text;
  const std::string dumb = trained("dumb", {"TERM=dumb"});
  EXPECT_TRUE(dumb.starts_with("counting\r\n")) << dumb;
  EXPECT_EQ(dumb.find('\033'), std::string::npos) << dumb;
}

TEST_F(ProgramOutput, AFifoIsRefusedAtOnce) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const char* flag : {"--train", "--validation", "--tokenizer"}) {
    const Outcome outcome = run_shell("timeout 20 " + train("fifo_run", {flag, fifo}));
    EXPECT_EQ(outcome.code, 1) << flag;
    EXPECT_NE(outcome.err.find("is not a regular file"), std::string::npos)
        << flag << ": " << outcome.err;
  }
}

TEST_F(ProgramOutput, AFlagsValueMayBeMinusH) {
  EXPECT_EQ(run({"tokenizer", "encode", "bytes", "--text", "-h"}).out, "45 104\n");
  EXPECT_TRUE(run({"tokenizer", "encode", "-h"}).out.starts_with("Usage: "));
  EXPECT_TRUE(run({"data", "inspect", "--json", "-h"}).out.starts_with("Usage: "));
}

TEST_F(ProgramOutput, ALostMappedFileIsAMessage) {
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  const Outcome outcome =
      run_shell(program({"tokenizer", "decode", "bytes"}) + " <'" + (folder_ / "fifo").string() +
                "' & pid=$!; exec 3>'" + (folder_ / "fifo").string() +
                "'; sleep 0.5; kill -BUS $pid; wait $pid");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err.find("quern: a file was cut short by another program"), 0u) << outcome.err;
}

}  // namespace
}  // namespace quern
