// The program from outside: exit codes, stdout and stderr.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/golden_copy.h"
#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Program, InfoSaysWhatItFinds) {
  const Outcome outcome = run({"info"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* heading : {"build\n", "\nCPU\n", "\nGPU\n", "\nlibraries\n"}) {
    EXPECT_NE(outcome.out.find(heading), std::string::npos) << heading;
  }
}

TEST(Program, UsageErrorsExitWithTwo) {
  expect_usage_error({"info", "all"}, "found 'all'");
  expect_usage_error({"verify"}, "found no case");
  expect_usage_error({"verify", "x", "--al"}, "unknown flag --al, did you mean --all?");
  expect_usage_error({"import"}, "expected one Hugging Face folder");
  expect_usage_error({"import", "folder"}, "no --out RUN");
  expect_usage_error({"import", "folder", "--out", "run", "--ctx", "8"}, "ctx has no meaning");
  expect_usage_error({"export", "run", "folder", "--ctx", "8"}, "ctx has no meaning");
  expect_usage_error({"export", "run", "folder", "--dtype", "int8"},
                     "--dtype is 'int8', expected float32, bfloat16, float16 or source");
  expect_usage_error({"export", "run", "folder", "--shard-size", "0"}, "--shard_size is 0");
  expect_usage_error({"export", "run", "folder", "--shard-size", "5GB"}, "--shard_size is 5GB");
  expect_usage_error({"generate", "run", "a b"},
                     "generate: found 'a b' after the run folder; did you mean --prompt 'a b'?");
  expect_usage_error({"generate", "run", "--seed=3"}, "did you mean --sample_seed?");
  expect_usage_error({"generate", "run", "--lr", "3"}, "generate: lr has no meaning here");
  expect_usage_error({"eval", "run"}, "eval: expected a run folder and a file\nUsage: ");
  expect_usage_error({"eval", "run", "file", "--validation", "v"}, "validation has no meaning");
  expect_usage_error({"export", "run", "folder", "--dtype", "bf16"}, "did you mean bfloat16?");
  expect_usage_error({"tune"}, "no --table FILE");
  expect_usage_error({"tune", "--table", "t", "--device", "cpu"}, "expected a GPU");
  expect_usage_error({"tune", "--table", "t", "--device", "cuda"}, "--vocab is 0");
  expect_usage_error({"bench"}, "bench: found nothing, expected a subcommand");
  expect_usage_error({"bench", "stpe"}, "found 'stpe'");
  expect_usage_error({"bench", "step", "--phases", "fwd,bwd"}, "'bwd'");
  expect_usage_error({"bench", "step", "--steps", "0"}, "--steps is 0, expected an integer from 1");
  expect_usage_error({"bench", "step", "--steps", "ten"}, "--steps is ten");
  expect_usage_error({"bench", "step", "--warmup", "-1"}, "--warmup is -1");
  expect_usage_error({"bench", "step", "--batch", "0"}, "--batch is 0");
  expect_usage_error({"bench", "step", "--size", "smal"}, "--size is smal");
  expect_usage_error({"bench", "step", "--device", "cpu", "--vocab", "0"}, "--vocab is 0");
  expect_usage_error({"bench", "step", "--device", "cpu", "--size", "shakespeare-cpu", "--phases",
                      "fwd", "--check"},
                     "--check needs the phase step");
}

TEST(Program, ASwitchIsTrueOrFalse) {
  for (const auto& [args, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"export", "run", "folder", "--latest=True"}, "--latest is 'True'"},
           {{"data", "inspect", "x", "--verify=yes"}, "--verify is 'yes'"},
           {{"data", "prepare", "x", "--out", "y", "--skip_bad=1"}, "--skip_bad is '1'"},
           {{"eval", "run", "x", "--json=1"}, "--json is '1'"},
           {{"bench", "step", "--device", "cpu", "--check="}, "--check is ''"},
           {{"watch", "run", "--once=1"}, "--once is '1'"}}) {
    expect_usage_error(args, message + ", expected true or false");
  }
}

// "$UNSET" in a shell.
TEST(Program, AnEmptyFlagIsAMistake) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"memory", "--out", ""},
                                             {"generate", "run", "--prompts", ""},
                                             {"bench", "attention", "--tokens="},
                                             {"bench", "attention", "--steps="},
                                             {"bench", "kernels", "--rows="},
                                             {"bench", "step", "--format", ""},
                                             {"export", "run", "folder", "--dtype", ""},
                                             {"data", "prepare", "x", "--split_on", ""},
                                             {"data", "inspect", "x", "--tokenizer", ""},
                                             {"train", "--gpus", ""}}) {
    std::string flag = args.back().empty() ? args[args.size() - 2] : args.back();
    flag = flag.substr(0, flag.find('='));
    expect_usage_error(args, flag + " is empty, expected a value; is a variable of the shell");
  }
  const Outcome outcome = run({"tokenizer", "encode", "bytes", "--text", ""});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "\n");
}

TEST(Program, AnEmptyArgumentIsAMistake) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"data", "prepare", "", "--out", "x"},
                                             {"tokenizer", "train", "", "--vocab", "300"},
                                             {"tokenizer", "info", ""},
                                             {"data", "inspect", ""},
                                             {"generate", ""},
                                             {"import", "", "--out", "x"},
                                             {"report", ""},
                                             {"watch", ""},
                                             {"verify", ""}}) {
    expect_usage_error(args, "argument 1 is empty, expected a name");
  }
  expect_usage_error({"export", "x", ""}, "argument 2 is empty, expected a name");
  expect_usage_error({"train", "--resume", ""}, "--resume is empty, expected a run's folder");
}

TEST(Program, FailuresExitWithOne) {
  const Outcome outcome = run({"verify", "--device", "cpu", "no/such/case"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err, "quern: verify: no/such/case is not a folder, expected a golden case\n");
}

TEST(Program, AFullDiskIsAnError) {
  const int status = std::system((program({"help"}) + " >/dev/full 2>/dev/null").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

// Import, export and import again through the program, byte for byte.
TEST(Program, ImportsAndExports) {
  const TemporaryFolder folder;
  const auto golden = golden_folder() / "qwen2_bias";
  const Outcome imported = run({"import", golden, "--out", folder / "run"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_TRUE(
      imported.out.ends_with("/run: 0.06 M parameters in 0.2 MiB, context 64, tokenizer: none\n"))
      << imported.out;
  const Outcome exported = run({"export", folder / "run", folder / "hf", "--shard-size", "1"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(read_file(folder / "hf/config.json"), read_file(golden / "config.json"));
  EXPECT_EQ(run({"import", folder / "run", "--out", folder / "again"}).code, 1);
  const Outcome verified = run({"eval", golden, "x"});
  EXPECT_NE(verified.err.find("is a Hugging Face folder"), std::string::npos) << verified.err;
}

TEST(Verify, PassesOnTheGoldenCases) {
  const Outcome outcome = run({"verify", "--device", "cpu", "tests/fixtures/golden/mha",
                               "tests/fixtures/golden/gqa_tied", "--all", "--kernels", "fused"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("16 of 16 runs within"), std::string::npos) << outcome.out;
}

TEST(Verify, APerturbedWeightExitsWithOne) {
  GoldenCopy copy("mha");
  copy.add("model.safetensors", "model.layers.0.self_attn.v_proj.weight", 9, 0.05f);
  const Outcome outcome = run({"verify", "--device", "cpu", copy.path().string()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("BEYOND"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("0 of 1 runs within"), std::string::npos) << outcome.out;
}

const std::vector<std::string> kTinyBench = {
    "bench",    "step", "--device", "cpu", "--size",  "shakespeare-cpu",
    "--layers", "1",    "--vocab",  "50",  "--ctx",   "16",
    "--batch",  "2",    "--warmup", "1",   "--steps", "3"};

TEST(Bench, JsonIsAloneOnStdout) {
  std::vector<std::string> args = kTinyBench;
  args.emplace_back("--json");
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(json.at("peer").get<std::string>().starts_with("quern-"));
  EXPECT_EQ(json.at("batch"), 2);
  EXPECT_EQ(json.at("ctx"), 16);
  EXPECT_EQ(json.at("vocab"), 50);
  EXPECT_EQ(json.at("size"), "shakespeare-cpu");
}

TEST(Bench, TableNamesThePartsAndTheCpusRatio) {
  const Outcome outcome = run(kTinyBench);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text : {"median ms", "fwdbwd", "step", "forward", "backward", "optimizer",
                           "gate_up_proj dw", "SGEMM at its shapes", "ratio"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
}

// The naive kernels on tiny matrices are far from half of the matrix product's rate.
TEST(Bench, CheckFailsBelowHalf) {
  std::vector<std::string> args = kTinyBench;
  args.insert(args.end(), {"--check", "--kernels", "naive", "--attention", "naive", "--phases",
                           "step", "--ctx", "2", "--batch", "1"});
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("expected at least 0.5"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace quern
