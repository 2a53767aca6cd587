// quern bench collectives from outside: processes on the CPU.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program.h"

namespace quern {
namespace {

using namespace testing_support;

bool lacks_gloo(const Outcome& outcome) {
  return outcome.err.find("this build has no Gloo") != std::string::npos;
}

TEST(BenchCollectivesProgram, RankZeroPrintsARowForEachCollectiveAndSize) {
  const Outcome outcome = run({"bench", "collectives", "--ranks", "3", "--device", "cpu", "--sizes",
                               "4,5000", "--warmup", "1", "--steps", "2", "--json"});
  if (lacks_gloo(outcome)) GTEST_SKIP() << outcome.err;
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream text(outcome.out);
  std::vector<std::string> seen;
  for (std::string line; std::getline(text, line);) {
    const auto row = nlohmann::json::parse(line);
    EXPECT_TRUE(row.at("peer").get<std::string>().starts_with("quern-"));
    EXPECT_TRUE(row.at("engine").get<std::string>().starts_with("Gloo"));
    EXPECT_EQ(row.at("ranks"), 3);
    EXPECT_GT(row.at("us"), 0.0);
    seen.push_back(cat(row.at("collective").get<std::string>(), ' ',
                       row.at("place").get<std::string>(), ' ', row.at("bytes")));
  }
  std::vector<std::string> expected;
  for (const char* name :
       {"all_reduce in", "all_reduce out", "reduce_scatter in", "reduce_scatter out",
        "all_gather in", "all_gather out", "broadcast in", "broadcast out", "exchange out",
        "ordered_reduce_scatter in", "ordered_all_reduce in"}) {
    for (const char* bytes : {" 4", " 5000"}) expected.push_back(cat(name, bytes));
  }
  EXPECT_EQ(seen, expected);
}

TEST(BenchCollectivesProgram, TheTableNamesTheEngine) {
  const Outcome outcome =
      run({"bench", "collectives", "--ranks", "2", "--device", "cpu", "--sizes", "1024",
           "--collectives", "exchange", "--warmup", "1", "--steps", "2"});
  if (lacks_gloo(outcome)) GTEST_SKIP() << outcome.err;
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("Gloo")) << outcome.out;
  EXPECT_NE(outcome.out.find(", 2 ranks on the CPU\ncollective "), std::string::npos);
  EXPECT_NE(outcome.out.find("\nexchange "), std::string::npos);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
}

TEST(BenchCollectivesProgram, UsageErrorsExitWithTwo) {
  const std::vector<std::string> cpu{"bench", "collectives", "--device", "cpu"};
  const auto expect = [&](const std::vector<std::string>& more, const std::string& message) {
    std::vector<std::string> args = cpu;
    args.insert(args.end(), more.begin(), more.end());
    expect_usage_error(args, message);
  };
  expect({}, "found one rank, expected several: --gpus N, or --ranks N --device cpu");
  expect({"--ranks", "2", "--sizes", "1023"}, "--sizes has 1023");
  expect({"--ranks", "2", "--sizes", "0"}, "--sizes is 0");
  expect({"--ranks", "2", "--collectives", "reduce"}, "--collectives has 'reduce'");
  expect({"--ranks", "2", "--places", "beside"}, "--places has 'beside'");
  expect({"--ranks", "2", "--collectives", "exchange", "--places", "in"},
         "--places has no case of --collectives");
  expect({"--ranks", "2", "--steps", "0"}, "--steps is 0");
  expect({"--ranks", "2", "--batch", "4"}, "batch has no meaning here");
  expect({"--ranks", "2", "extra"}, "found 'extra'");
}

}  // namespace
}  // namespace quern
