// quern bench decode from outside, on the CPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

const std::vector<std::string> kSmall{"bench",           "decode",
                                      "--device",        "cpu",
                                      "--size",          "toy",
                                      "--vocab",         "64",
                                      "--ctx",           "64",
                                      "--batch",         "1,2",
                                      "--way",           "automatic,composed",
                                      "--prompt_tokens", "3",
                                      "--measured",      "4"};

TEST(BenchDecodeProgram, GivesARowForEveryCombination) {
  std::vector<std::string> args = kSmall;
  args.insert(args.end(), {"--precision", "fp32,bf16", "--format", "json"});
  const Outcome outcome = run(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream text(outcome.out);
  int rows = 0;
  for (std::string line; std::getline(text, line); ++rows) {
    const nlohmann::json row = nlohmann::json::parse(line);
    for (const char* key : {"ms", "waited_ms", "tokens_per_second", "weight_gb", "times_read"}) {
      EXPECT_GT(row.at(key).get<double>(), 0.0) << key;
    }
  }
  EXPECT_EQ(rows, 2 * 2 * 2);
}

// The buffer of the read takes 256 MiB.
TEST(BenchDecodeProgram, WithoutRoomForTheReadARowHasTheOtherFigures) {
  std::vector<std::string> args = kSmall;
  args.insert(args.end(), {"--memory_limit", "100", "--batch", "1", "--way", "composed", "--json"});
  const Outcome outcome = run(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json row = nlohmann::json::parse(outcome.out);
  EXPECT_GT(row.at("ms"), 0.0);
  EXPECT_FALSE(row.contains("times_read")) << row;
}

TEST(BenchDecodeProgram, SaysWhatIsWrong) {
  const auto fails = [](std::vector<std::string> more, const std::string& text) {
    std::vector<std::string> args{"bench", "decode", "--device", "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  fails({"--ctx", "64"}, "--ctx is 64, expected at least 393");
  fails({"--way", "fast"}, "--way is 'fast', expected automatic, composed or launched");
  fails({"--measured", "0"}, "--measured is 0");
  fails({"--precision", "fp8", "--ctx", "512"}, "tokens are generated in BF16: measure bf16");
  fails({"model"}, "bench decode: found 'model'");
}

}  // namespace
}  // namespace quern
