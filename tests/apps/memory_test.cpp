// quern memory from outside, on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;
using nlohmann::json;

std::vector<std::string> tiny(const std::vector<std::string>& more) {
  std::vector<std::string> args{"memory", "--size",  "toy", "--layers", "2",  "--d_model",
                                "64",     "--d_ff",  "128", "--heads",  "4",  "--vocab",
                                "100",    "--batch", "2",   "--device", "cpu"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<json> rows_of(const std::vector<std::string>& more) {
  const Outcome outcome = run(tiny(more));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<json> rows;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) rows.push_back(json::parse(line));
  return rows;
}

TEST(Memory, ListsGiveAPredictedAndAMeasuredRowEach) {
  const auto rows = rows_of({"--ctx", "16,32", "--precision", "fp32,bf16", "--json"});
  ASSERT_EQ(rows.size(), 2 * 2 * 2 * 2);
  for (size_t i = 0; i < rows.size(); i += 2) {
    EXPECT_EQ(rows[i].at("peak"), "predicted");
    EXPECT_EQ(rows[i + 1].at("peak"), "measured");
    EXPECT_EQ(rows[i].at("pass"), i % 4 == 0 ? "forward" : "step");
    EXPECT_EQ(rows[i].at("deviation_percent"), 0.0) << rows[i];
    const json& m = rows[i + 1];
    double sum = 0.0;
    for (const char* category :
         {"parameters", "gradients", "optimizer", "activations", "workspace", "other"}) {
      sum += m.at(std::string(category) + "_mib").get<double>();
    }
    EXPECT_NEAR(sum, m.at("mib").get<double>(), 0.31) << m;  // six numbers of one digit
    EXPECT_EQ(m.at("gradients_mib") == 0.0, m.at("pass") == "forward") << m;
  }
  EXPECT_LT(rows[1].at("bytes"), rows[3].at("bytes"));
}

TEST(Memory, EveryFormatHasTheRows) {
  const std::vector<std::string> lists{"--ctx", "16", "--recompute", "none,swiglu"};
  for (const auto& [format, lines] :
       {std::pair{"text", 3 + 1 + 8}, std::pair{"csv", 1 + 8}, std::pair{"markdown", 2 + 2 + 8}}) {
    std::vector<std::string> args = lists;
    args.insert(args.end(), {"--format", format});
    const Outcome outcome = run(tiny(args));
    EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), lines) << outcome.out;
  }
}

TEST(Memory, TextFitsAHundredColumns) {
  using Args = std::vector<std::string>;
  const Args lists{"--ctx", "16,32", "--precision", "fp32,bf16", "--attention", "naive,flash"};
  for (const Args& more :
       {Args{"--ctx", "16"}, lists, Args{"--ctx", "16", "--block"},
        Args{"--ctx", "16", "--batch", "1,2", "--precision", "fp32,bf16", "--block"}}) {
    Args args = tiny(more);
    const size_t narrow = widest_line(args);
    EXPECT_LE(narrow, 100u) << program(args);
    args.emplace_back("--wide");
    EXPECT_GT(widest_line(args), 100u) << program(args);
  }
  const Outcome large = run({"memory", "--size", "2.7B", "--predict"});
  EXPECT_NE(large.out.find(" other off by %\na GPU "), std::string::npos) << large.out;
}

TEST(Memory, PredictsWithoutMeasuring) {
  const Outcome outcome = run({"memory", "--size", "2.7B", "--ctx", "128,512", "--precision",
                               "fp32,bf16", "--predict", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("\"measured\""), std::string::npos);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 8);
}

TEST(Memory, OutOfMemoryIsARow) {
  const Outcome outcome =
      run({"memory", "--size", "toy", "--vocab", "100", "--device", "cpu", "--passes", "forward",
           "--ctx", "16,32", "--batch", "1", "--memory_limit", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  size_t rows = 0;
  for (size_t at = 0; (at = outcome.out.find("out of memory", at)) != std::string::npos; ++at) {
    ++rows;
  }
  EXPECT_EQ(rows, 2) << outcome.out;
}

TEST(Memory, WritesThePageAndTheSnapshot) {
  const TemporaryFolder folder;
  const std::string out = folder / "new/trace";
  const Outcome outcome = run(tiny({"--ctx", "16", "--out", out, "--json"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = read_file(out + "/memory.html");
  std::istringstream text(outcome.out);
  json last;
  for (std::string line; std::getline(text, line);) last = json::parse(line);
  const std::string peak = "\"bytes\":" + std::to_string(last.at("bytes").get<int64_t>());
  EXPECT_NE(page.find(peak), std::string::npos) << peak;
  EXPECT_NE(page.find("context 16, "), std::string::npos) << "the page names its model";
  EXPECT_FALSE(read_file(out + "/memory.pickle").empty());
}

TEST(Memory, ABlockTensorByTensor) {
  const auto rows = rows_of({"--ctx", "16", "--block", "--json"});
  int64_t sum = 0;
  std::vector<int64_t> totals;
  for (const json& row : rows) {
    const int64_t bytes = row.at("bytes").get<int64_t>();
    if (row.at("tensor") == "all") {
      EXPECT_EQ(sum, bytes) << row;
      totals.push_back(std::exchange(sum, 0));
    } else if (row.at("tensor") != "predicted") {
      sum += bytes;
    }
  }
  ASSERT_EQ(totals.size(), 4);  // none, swiglu, norms, blocks
  for (size_t i = 1; i < totals.size(); ++i) EXPECT_GT(totals[i - 1], totals[i]) << i;
}

TEST(Memory, ABlockOutOfMemoryIsARow) {
  const auto rows = rows_of({"--ctx", "512", "--block", "--memory_limit", "1", "--json"});
  ASSERT_EQ(rows.size(), 4 * 2);
  for (size_t i = 0; i < rows.size(); i += 2) {
    EXPECT_EQ(rows[i].at("tensor"), "all");
    EXPECT_EQ(rows[i].at("error"), "OOM");
    EXPECT_EQ(rows[i + 1].at("tensor"), "predicted");
    EXPECT_GT(rows[i + 1].at("bytes"), 0);
  }
}

// A file may be a training's, with a device and ranks of its own.
TEST(Memory, AClustersFileMayBeThatOfATraining) {
  const TemporaryFolder folder;
  const std::string file = folder / "config.toml";
  const auto predicts = [&](std::vector<std::string> args) {
    args.insert(args.begin(), "memory");
    args.insert(args.end(), {"--vocab", "50304", "--gpus", "8", "--step_ms", "50"});
    return run(args);
  };
  write_file(file, "[compute]\ndevice = \"cuda\"\noffload = \"none\"\n[parallel]\nranks = 2\n");
  for (const std::string& path : {std::string("configs/small.toml"), file}) {
    const Outcome outcome = predicts({"--config", path});
    EXPECT_EQ(outcome.code, 0) << path << ": " << outcome.err;
    EXPECT_NE(outcome.out.find("zero1"), std::string::npos) << outcome.out;
  }
  EXPECT_EQ(predicts({"--offload", "none"}).code, 0);
  const std::string muon = predicts({"--optimizer", "muon"}).out;
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    EXPECT_NE(muon.find(strategy), std::string::npos) << muon;
  }
  write_file(file, "[compute]\noffload = \"moments\"\n");
  EXPECT_NE(predicts({"--config", file}).err.find("offload is moments, expected none with --gpus"),
            std::string::npos);
}

TEST(Memory, RefusesWhatItCannotDo) {
  expect_usage_error({"memory", "--size", "smal"}, "--size is smal, expected one of toy");
  expect_usage_error({"memory", "--passes", "backward"}, "expected some of forward, step");
  expect_usage_error({"memory", "here"}, "found 'here', expected only flags");
  expect_usage_error({"memory", "--vocab", "0"}, "--vocab is 0, expected at least 1");
  expect_usage_error({"memory", "--out", "x", "--ctx", "16,32"}, "for one configuration");
  expect_usage_error({"memory", "--out", "x", "--predict"}, "needs a measured pass");
  expect_usage_error({"memory", "--out", "x", "--block"}, "--out has no meaning with --block");
  expect_usage_error({"memory", "--format", "pdf"}, "pdf");
  expect_usage_error({"memory", "--gpus", "8", "--precision", "fp8"},
                     "needs --step_ms or --tflops where precision is not bf16");
  expect_usage_error({"memory", "--gpus", "8", "--ranks", "2"}, "--ranks has no meaning with");
  expect_usage_error({"memory", "--gpus", "8", "--device", "cpu"}, "--device has no meaning with");
  const Outcome unwritable = run(tiny({"--ctx", "16", "--out", "/proc/none"}));
  EXPECT_EQ(unwritable.code, 1);
  EXPECT_NE(unwritable.err.find("/proc/none"), std::string::npos) << unwritable.err;
}

}  // namespace
}  // namespace quern
