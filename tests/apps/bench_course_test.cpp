// quern bench accumulate, dtypes, matmul and mlp from outside: on the CPU, in each format.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

std::vector<std::string> lines_of(std::vector<std::string> args, const std::string& format) {
  args.insert(args.end(), {"--device", "cpu", "--format", format});
  const Outcome outcome = run(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

const std::vector<std::string> kAccumulate{"bench", "accumulate"};
const std::vector<std::string> kDtypes{"bench", "dtypes"};
const std::vector<std::string> kMatmul{"bench",    "matmul", "--sizes",     "8,16",
                                       "--shapes", "4x6x8",  "--steps",     "2",
                                       "--warmup", "1",      "--precision", "fp32,bf16"};
const std::vector<std::string> kMlp{"bench",    "mlp", "--layers", "2", "--width",  "8",
                                    "--batch",  "4",   "--steps",  "1", "--scales", "2,3",
                                    "--warmup", "1",   "--trials", "2"};

// In CSV one of the rows is the heading; Markdown adds two heading lines and the lesson.
TEST(BenchCourse, EachFormatHasEveryRow) {
  const std::vector<std::pair<std::vector<std::string>, size_t>> commands{
      {kAccumulate, 6}, {kMatmul, 3 * 2}, {kMlp, 1 + 4 * 2}};
  for (const auto& [args, rows] : commands) {
    const auto json = lines_of(args, "json");
    EXPECT_EQ(json.size(), rows) << args[1];
    for (const std::string& line : json) {
      EXPECT_TRUE(nlohmann::json::parse(line).at("peer").get<std::string>().starts_with("quern-"));
    }
    EXPECT_EQ(lines_of(args, "csv").size(), 1 + rows) << args[1];
    size_t bars = 0;
    for (const std::string& line : lines_of(args, "markdown")) bars += line.starts_with("| ");
    EXPECT_EQ(bars, 2 + rows) << args[1];
    EXPECT_GE(lines_of(args, "text").size(), 1 + rows) << args[1];
  }
}

TEST(BenchCourse, AccumulatePrintsTheTableAndTheReason) {
  const Outcome outcome = run({"bench", "accumulate", "--device", "cpu"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text : {" 10.0001 ", " 9.9531 ", " 4.0000 ", " 10.0021 ", " 10.0098 ",
                           "last addition added", "is taken in FP32"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
  const auto few = lines_of({"bench", "accumulate", "--count", "3"}, "json");
  EXPECT_EQ(nlohmann::json::parse(few.at(0)).at("sum"), 0.03);
}

TEST(BenchCourse, DtypesPrintsBothModels) {
  const auto lines = lines_of({"bench", "dtypes", "--precision", "tf32,bf16"}, "json");
  size_t toy = 0, losses = 0;
  for (const std::string& line : lines) {
    const auto row = nlohmann::json::parse(line);
    toy += row.at("model") == "toy" ? 1 : 0;
    if (row.at("kind") != "loss") continue;
    ++losses;
    EXPECT_EQ(row.at("tf32"), "f32");
    EXPECT_EQ(row.at("bf16"), "f32");
  }
  EXPECT_EQ(losses, 2u);
  EXPECT_GT(toy, 15u);
  EXPECT_GT(lines.size(), 2 * toy);
  const auto naive = lines_of({"bench", "dtypes", "--model", "lm", "--kernels", "naive"}, "json");
  EXPECT_GT(naive.size(), lines.size() - toy);
}

TEST(BenchCourse, UsageErrorsExitWithTwo) {
  expect_usage_error({"bench", "acumulate"}, "did you mean `quern bench accumulate`?");
  expect_usage_error({"bench", "accumulate", "--count", "0"}, "--count is 0, expected an integer");
  expect_usage_error({"bench", "accumulate", "--format", "html"}, "expected text, markdown");
  expect_usage_error({"bench", "accumulate", "--batch", "3"}, "batch has no meaning here");
  expect_usage_error({"bench", "dtypes", "--model", "toi"}, "did you mean toy?");
  expect_usage_error({"bench", "dtypes", "--model="}, "--model is empty");
  expect_usage_error({"bench", "dtypes", "--precision", "fp16"}, "--precision has 'fp16'");
  expect_usage_error({"bench", "dtypes", "--precision="}, "--precision is empty");
  expect_usage_error({"bench", "dtypes", "--kernels", "fused,naive"},
                     "--kernels is 'fused,naive', expected naive or fused");
  expect_usage_error({"bench", "matmul", "--sizes", "256,x"}, "--sizes is x");
  expect_usage_error({"bench", "matmul", "--sizes", "2000000000"}, "--sizes is 2000000000");
  for (const char* shape : {"512x64", "512x64x", "x512x64", "512x64x8x2", "0x1x1", "1x1xk",
                            "1x1x1073741825", " 1x1x1"}) {
    expect_usage_error({"bench", "matmul", "--shapes", shape},
                       cat("--shapes has '", shape, "', expected MxNxK"));
  }
  expect_usage_error({"bench", "matmul", "--steps", "0"}, "--steps is 0");
  expect_usage_error({"bench", "matmul", "--steps", "1099511627776"},
                     "expected an integer from 1 to 1000000");
  expect_usage_error({"bench", "dtypes", "--precision", "fp32,fp32"},
                     "--precision has 'fp32' twice");
  expect_usage_error({"bench", "mlp", "--scales="}, "--scales is empty");
  expect_usage_error({"bench", "matmul", "--sizes", "64,,32"}, "--sizes has an empty entry");
  expect_usage_error({"bench", "matmul", "all"}, "bench matmul: found 'all'");
  expect_usage_error({"bench", "mlp", "--width", "0"}, "--width is 0");
  expect_usage_error({"bench", "mlp", "--scale", "depth"}, "--scale has 'depth'");
  expect_usage_error({"bench", "mlp", "--scales", "2,many"}, "--scales is many");
  expect_usage_error({"bench", "mlp", "--width", "1048576", "--scales", "32"},
                     "--width is 1048576, and scaled by 32 more than 16777216");
}

TEST(BenchCourse, EachBenchmarkHasHelp) {
  for (const char* name : {"matmul", "mlp", "accumulate", "dtypes"}) {
    const Outcome outcome = run({"bench", name, "--help"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with(std::string("Usage: quern bench ") + name)) << outcome.out;
    EXPECT_NE(outcome.out.find("--format"), std::string::npos) << outcome.out;
    EXPECT_NE(run({"help", "bench"}).out.find(std::string("\n  ") + name + " "), std::string::npos);
  }
}

}  // namespace
}  // namespace quern
