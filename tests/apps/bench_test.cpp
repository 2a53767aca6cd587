// quern bench from outside.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/program.h"
#include "support/sanitized.h"

namespace quern {
namespace {

using namespace testing_support;

std::vector<nlohmann::json> lines_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<nlohmann::json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(BenchProgram, UsageErrorsExitWithTwo) {
  expect_usage_error(
      {"bench", "attenton"},
      "found 'attenton', expected one of step, attention, kernels, decode, matmul, mlp,"
      " accumulate, dtypes, collectives, did you mean `quern bench attention`?");
  expect_usage_error({"bench", "attention", "all"}, "bench attention: found 'all'");
  expect_usage_error({"bench", "attention", "--grid", "seed"}, "--grid has 'seed', expected some");
  expect_usage_error({"bench", "attention", "--grid="}, "--grid is empty");
  expect_usage_error({"bench", "attention", "--dims="}, "--dims is empty");
  expect_usage_error({"bench", "kernels", "--kernel="}, "--kernel is empty");
  expect_usage_error({"bench", "attention", "--precision", "fp16"}, "--precision has 'fp16'");
  expect_usage_error({"bench", "attention", "--variant", "flsh"}, "did you mean flash?");
  expect_usage_error({"bench", "attention", "--lengths", "256,0"}, "--lengths is 0, expected an");
  expect_usage_error({"bench", "attention", "--dims",
                      "64,"
                      "x"},
                     "--dims is x");
  expect_usage_error({"bench", "attention", "--steps", "0"}, "--steps is 0");
  expect_usage_error({"bench", "attention", "--size", "small"}, "size has no meaning here\n");
  expect_usage_error({"bench", "step", "--accumulate", "2"}, "accumulate has no meaning here\n");
  expect_usage_error({"bench", "attention", "--ctx", "512"},
                     "bench attention: ctx has no meaning here, did you mean --lengths?");
  expect_usage_error({"bench", "attention", "--shapes", "1x8x16x64"}, "expected BxHxHkxTxD");
  expect_usage_error({"bench", "attention", "--shapes", "1x8x3x16x64"},
                     "8 query heads and 3 key and value heads");
  expect_usage_error({"bench", "attention", "--shapes", "1x8x4x16x64", "--dims", "8"},
                     "--dims has no meaning beside --shapes");
  expect_usage_error({"bench", "kernels", "--steps", "1", "--warmup", "1,x"}, "--warmup is x");
  expect_usage_error({"bench", "attention", "--device", "cpu", "--variant", "naive_graph"},
                     "needs a GPU");
  expect_usage_error({"bench", "kernels", "--kernel", "gelu,sofmax"}, "did you mean softmax?");
  expect_usage_error({"bench", "kernels", "--variant", "fast"}, "--variant has 'fast'");
  expect_usage_error({"bench", "kernels", "--rows", "-3"}, "--rows is -3");
  expect_usage_error({"bench", "kernels", "--row", "3"}, "did you mean --rows?");
  for (const char* name : {"step", "attention", "kernels"}) {
    expect_usage_error({"bench", name, "--format", "yaml"}, "--format is 'yaml', expected text,");
    expect_usage_error({"bench", name, "--json", "--format", "csv"}, "found --json and --format");
  }
  expect_usage_error({"bench", "step", "--size", "toy,smal"}, "smal");
  expect_usage_error({"bench", "step", "--ctx", "8,,16"}, "--ctx is empty");
  expect_usage_error({"bench", "step", "--batch", "2,x"}, "--batch is x");
  expect_usage_error({"bench", "step", "--device", "cpu", "--batch", "1,2", "--check"},
                     "--check is for one configuration");
}

TEST(BenchProgram, EachBenchmarkHasHelp) {
  for (const char* name : {"step", "attention", "kernels"}) {
    const Outcome outcome = run({"bench", name, "--help"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with(std::string("Usage: quern bench ") + name)) << outcome.out;
    EXPECT_NE(run({"help", "bench"}).out.find(std::string("\n  ") + name + " "), std::string::npos);
  }
}

const std::vector<std::string> kTinyAttention = {
    "bench", "attention", "--device", "cpu",      "--grid", "course",  "--dims",
    "16",    "--lengths", "32",       "--warmup", "1",      "--steps", "2"};

TEST(BenchProgram, AttentionPrintsALineARow) {
  const Outcome table = run(kTinyAttention);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* text : {"variant", "saved MiB", "naive ", "flash ", "bf16 ", "fp32 "}) {
    EXPECT_NE(table.out.find(text), std::string::npos) << text << "\n" << table.out;
  }
  std::vector<std::string> args = kTinyAttention;
  args.emplace_back("--json");
  const auto lines = lines_of(run(args));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].at("peer").get<std::string>().starts_with("quern-"));
  EXPECT_EQ(lines[1].at("backend"), "flash");
  EXPECT_EQ(lines[3].at("dtype"), "fp32");
  EXPECT_EQ(lines[3].at("B"), 8);
}

TEST(BenchProgram, KernelsPrintsALineARow) {
  const std::vector<std::string> args = {"bench",   "kernels", "--device", "cpu",
                                         "--rows",  "2",       "--kernel", "softmax,gelu",
                                         "--steps", "1",       "--warmup", "1"};
  const Outcome table = run(args);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* text :
       {"% copy", "% roof", "memcpy", "softmax ", "gelu ", "2 x 4096", "bfloat16"}) {
    EXPECT_NE(table.out.find(text), std::string::npos) << text << "\n" << table.out;
  }
  std::vector<std::string> with_json = args;
  with_json.emplace_back("--json");
  const auto lines = lines_of(run(with_json));
  ASSERT_EQ(lines.size(), 3u + 12u + 2u);  // the ceilings, four softmax in three variants, gelu
  EXPECT_EQ(lines[0].at("kernel"), "copy");
  EXPECT_EQ(lines[1].at("kernel"), "matmul");
  EXPECT_EQ(lines[3].at("reads"), 5 * 2 * 4096 + 2 * 2);
  EXPECT_EQ(lines[4].at("variant"), "online");
  EXPECT_EQ(lines[16].at("variant"), "fused");
}

const std::vector<std::string> kTinyStep = {
    "bench",    "step", "--device", "cpu", "--size",   "shakespeare-cpu",
    "--layers", "1",    "--vocab",  "50",  "--ctx",    "8,16",
    "--batch",  "1,2",  "--warmup", "0",   "--phases", "step",
    "--steps",  "4"};

size_t count_lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(BenchProgram, StepTakesTheProductOfItsLists) {
  const Outcome table = run(kTinyStep);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(count_lines(table.out), 3u + 4u) << table.out;
  std::vector<std::string> args = kTinyStep;
  args.emplace_back("--wide");
  const Outcome wide = run(args);
  for (const char* text : {"ctx    batch phase", "95 % ms", "fwd ms", "opt MiB", "1st ms"}) {
    EXPECT_NE(wide.out.find(text), std::string::npos) << text << "\n" << wide.out;
  }
  args.back() = "--json";
  const auto lines = lines_of(run(args));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1].at("ctx"), 8);
  EXPECT_EQ(lines[1].at("batch"), 2);
  EXPECT_EQ(lines[3].at("ctx"), 16);
  EXPECT_EQ(lines[3].at("step").at("first_ms").size(), 3u);
  EXPECT_GT(lines[3].at("step").at("rest_ms"), 0.0);
}

TEST(BenchProgram, WarmupAndGraphAreListsToo) {
  std::vector<std::string> args = kTinyStep;
  args.insert(args.end(),
              {"--ctx", "8", "--batch", "1", "--warmup", "0,1", "--graph", "true,false"});
  const Outcome table = run(args);
  EXPECT_NE(table.out.find("\nwarmup graph phase "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\n     1 true  step "), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\n     1 false step "), std::string::npos) << table.out;
  args.emplace_back("--json");
  const auto lines = lines_of(run(args));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1].at("warmup"), 1);
  EXPECT_EQ(lines[2].at("warmup"), 0);
  EXPECT_EQ(lines[2].at("graph"), false);
  const auto attention =
      lines_of(run({"bench", "attention", "--device", "cpu", "--grid", "course", "--dims", "16",
                    "--lengths", "32", "--steps", "1", "--warmup", "1,2", "--variant", "flash",
                    "--json", "--precision", "fp32"}));
  ASSERT_EQ(attention.size(), 2u);
  EXPECT_EQ(attention[1].at("warmup"), 2);
}

// The subcommands of `quern bench`, from its help.
std::set<std::string> benchmarks() {
  std::set<std::string> names;
  std::istringstream help(run({"help", "bench"}).out);
  for (std::string line; std::getline(help, line);) {
    if (line.starts_with("  ")) names.insert(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

TEST(BenchProgram, TextFitsAHundredColumns) {
  using Args = std::vector<std::string>;
  const auto with = [](Args args, const Args& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::vector<Args> commands{
      with(kTinyStep, {"--precision", "fp32,bf16", "--attention", "naive,flash"}),
      with(kTinyStep, {"--batch", "1", "--ctx", "8", "--phases", "fwd,fwdbwd,step"}),
      {"bench", "decode", "--size", "toy", "--vocab", "64", "--ctx", "64", "--prompt_tokens", "3",
       "--measured", "4"},
      {"bench", "kernels", "--rows", "2", "--kernel", "gelu", "--steps", "1", "--warmup", "1"},
      {"bench", "mlp", "--layers", "1", "--width", "8", "--batch", "4", "--steps", "1", "--scales",
       "2", "--trials", "1", "--optimizer"},
      {"bench", "matmul", "--sizes", "8", "--steps", "1"},
      {"bench", "accumulate"},
      {"bench", "collectives", "--ranks", "2", "--sizes", "1024", "--steps", "1", "--warmup", "1"},
      {"bench", "dtypes"},
      {"bench", "dtypes", "--kernels", "naive"},
      kTinyAttention};
  std::set<std::string> names;
  for (Args args : commands) {
    names.insert(args[1]);
    args.insert(args.end(), {"--device", "cpu"});
    const size_t narrow = widest_line(args);
    EXPECT_LE(narrow, 100u) << program(args);
    EXPECT_GE(narrow, 50u) << program(args);
    args.emplace_back("--wide");
    EXPECT_GE(widest_line(args), narrow) << program(args);
  }
  EXPECT_EQ(names, benchmarks());
}

// Matrices of 2^44 bytes. Every such row reports it, and the next one still runs.
TEST(BenchProgram, StepsOutOfMemoryAreRows) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 16 TiB";
  std::vector<std::string> args = kTinyStep;
  args.insert(args.end(),
              {"--d_model", "1048576", "--d_ff", "4194304", "--heads", "8192", "--format", "csv"});
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(count_lines(outcome.out), 1u + 4u) << outcome.out;
  std::istringstream lines(outcome.out);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) EXPECT_TRUE(line.ends_with(",OOM\r")) << line;
}

// Naive attention's scores take 64 MiB, the step with flash attention 4 MiB.
TEST(BenchProgram, AStepsProductsAloneMayNotFit) {
  std::vector<std::string> args{"bench",    "step", "--device",       "cpu", "--size",  "toy",
                                "--layers", "1",    "--d_model",      "32",  "--d_ff",  "32",
                                "--heads",  "4",    "--vocab",        "50",  "--ctx",   "2048",
                                "--batch",  "1",    "--warmup",       "0",   "--steps", "1",
                                "--phases", "step", "--memory_limit", "40"};
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nmatrix products alone: out of memory\n"), std::string::npos)
      << outcome.out;
  args.emplace_back("--check");
  const Outcome checked = run(args);
  EXPECT_EQ(checked.code, 1);
  EXPECT_NE(checked.err.find("--check: the matrix products alone ran out"), std::string::npos)
      << checked.err;
}

TEST(BenchProgram, EveryBenchmarkWritesMarkdownAndCsv) {
  std::vector<std::string> kernels{"bench",    "kernels", "--device", "cpu", "--rows",   "2",
                                   "--kernel", "gelu",    "--steps",  "1",   "--warmup", "1"};
  for (std::vector<std::string> args : {kTinyStep, kTinyAttention, kernels}) {
    args.insert(args.end(), {"--format", "markdown"});
    const Outcome markdown = run(args);
    EXPECT_EQ(markdown.code, 0) << markdown.err;
    EXPECT_NE(markdown.out.find("\n| :--- |"), std::string::npos) << markdown.out;
    args.back() = "csv";
    const Outcome csv = run(args);
    EXPECT_EQ(csv.code, 0) << csv.err;
    EXPECT_TRUE(csv.out.starts_with("peer,")) << csv.out;
    const size_t commas = static_cast<size_t>(std::count(csv.out.begin(), csv.out.end(), ','));
    const std::string head = csv.out.substr(0, csv.out.find('\n'));
    const auto columns = static_cast<size_t>(std::count(head.begin(), head.end(), ','));
    EXPECT_EQ(commas, columns * count_lines(csv.out)) << csv.out;
  }
}

}  // namespace
}  // namespace quern
