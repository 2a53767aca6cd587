// quern profile from outside, on the CPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

std::vector<std::string> tiny(std::vector<std::string> more) {
  std::vector<std::string> args{"profile", "--device",  "cpu", "--size",  "toy", "--layers",
                                "2",       "--d-model", "32",  "--d-ff",  "64",  "--heads",
                                "2",       "--ctx",     "16",  "--batch", "2",   "--vocab",
                                "64",      "--warmup",  "1",   "--steps", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(ProfileApp, PrintsTablesAndWritesTheFolder) {
  const TemporaryFolder folder;
  const std::string out = folder / "profile";
  const Outcome outcome = run(tiny({"--out", out}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const std::string& text : std::vector<std::string>{"forward", "backward", "optimizer",
                                                          "linear", "model.layers", out}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
  for (const char* name : {"trace.json", "table.txt", "ops.csv", "profile.json", "cpu.folded",
                           "memory.html", "memory.pickle"}) {
    EXPECT_GT(read_file(out + "/" + name).size(), 0u) << name;
  }
  EXPECT_TRUE(nlohmann::json::parse(read_file(out + "/trace.json")).contains("traceEvents"));
}

TEST(ProfileApp, RunsPartsAndLessOfTraining) {
  const TemporaryFolder folder;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--phases", "fwd", "--memory", "false"},
        {"--phases", "fwdbwd"},
        {"--target", "attention"},
        {"--target", "mlp", "--precision", "bf16"}}) {
    std::vector<std::string> args = tiny({"--out", folder / "p", "--format", "csv"});
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find("optimizer"), std::string::npos) << more[0];
    EXPECT_EQ(outcome.out.find("written"), std::string::npos) << "rows alone";
  }
}

TEST(ProfileApp, UsageErrorsExitWithTwo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--target", "softmx"}, "did you mean softmax"},
      {{"--phases", "step,fwd"}, "expected fwd, fwdbwd or step"},
      {{"--phases", "forwards"}, "--phases is 'forwards'"},
      {{"--sort", "speed"}, "speed"},
      {{"--group-by", "layer"}, "--group_by has 'layer'"},
      {{"--rows", "many"}, "--rows is many"},
      {{"--steps", "0"}, "--steps is 0"},
      {{"--graph=yes"}, "--graph is 'yes'"},
      {{"--memory=some"}, "--memory is 'some'"},
      {{"--graph"}, "--graph needs a GPU"},
      {{"--format", "xml"}, "xml"},
      {{"--size", "huge"}, "huge"},
      {{"here"}, "found 'here'"},
  };
  const TemporaryFolder folder;
  for (const auto& [more, message] : cases) {
    std::vector<std::string> args = tiny({"--out", folder / "p"});
    args.insert(args.end(), more.begin(), more.end());
    expect_usage_error(args, message);
    EXPECT_FALSE(std::filesystem::exists(folder / "p")) << message;
  }
}

// An unwritable folder is rejected before the run, whose result would be lost.
TEST(ProfileApp, AnUnwritableFolderIsNamedBeforeTheRun) {
  const TemporaryFolder folder;
  write_file(folder / "file", "not a folder");
  for (const std::string& out : {(folder / "file").string(), std::string("/proc/quern")}) {
    const Outcome outcome = run(tiny({"--steps", "1000000", "--out", out}));
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.err.find(out), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(ProfileApp, HelpListsTheTargets) {
  const Outcome outcome = run({"help", "profile"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* text : {"--target", "--cupti", "attention", "softmax", "rmsnorm_bwd"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace quern
