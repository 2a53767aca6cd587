// quern bench attention and kernels from outside.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program.h"

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
  expect_usage_error({"bench", "attenton"},
                     "found 'attenton', expected step, attention or kernels,"
                     " did you mean attention?");
  expect_usage_error({"bench", "attention", "all"}, "bench attention: found 'all'");
  expect_usage_error({"bench", "attention", "--grid", "seed"}, "--grid has 'seed', expected some");
  expect_usage_error({"bench", "attention", "--grid="}, "--grid is empty");
  expect_usage_error({"bench", "attention", "--precision", "fp16"}, "--precision has 'fp16'");
  expect_usage_error({"bench", "attention", "--variant", "flsh"}, "did you mean flash?");
  expect_usage_error({"bench", "attention", "--lengths", "256,0"}, "--lengths is 0, expected an");
  expect_usage_error({"bench", "attention", "--dims",
                      "64,"
                      "x"},
                     "--dims is x");
  expect_usage_error({"bench", "attention", "--steps", "0"}, "--steps is 0");
  expect_usage_error({"bench", "attention", "--size", "small"}, "size has no meaning here");
  expect_usage_error({"bench", "attention", "--device", "cpu", "--variant", "naive_graph"},
                     "needs a GPU");
  expect_usage_error({"bench", "kernels", "--kernel", "gelu,sofmax"}, "did you mean softmax?");
  expect_usage_error({"bench", "kernels", "--variant", "fast"}, "--variant has 'fast'");
  expect_usage_error({"bench", "kernels", "--rows", "-3"}, "--rows is -3");
  expect_usage_error({"bench", "kernels", "--row", "3"}, "did you mean --rows?");
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
  for (const char* text : {"of copy", "memcpy", "softmax ", "gelu ", "2 x 4096", "bfloat16"}) {
    EXPECT_NE(table.out.find(text), std::string::npos) << text << "\n" << table.out;
  }
  std::vector<std::string> with_json = args;
  with_json.emplace_back("--json");
  const auto lines = lines_of(run(with_json));
  ASSERT_EQ(lines.size(), 1u + 8u + 2u);
  EXPECT_EQ(lines[0].at("kernel"), "copy");
  EXPECT_EQ(lines[10].at("variant"), "fused");
}

}  // namespace
}  // namespace quern
