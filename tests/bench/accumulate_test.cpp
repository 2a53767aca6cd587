#include "bench/accumulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/half.h"
#include "config/config.h"

namespace quern {
namespace {

std::vector<AccumulateRow> thousand() {
  std::vector<AccumulateRow> rows;
  for (const AccumulateCase& one : accumulate_cases()) rows.push_back(accumulate_terms(one, 1000));
  return rows;
}

// The first, second, fourth and fifth are what PyTorch prints for the same four loops.
TEST(Accumulate, AThousandTimesAHundredthToThePrintedDigits) {
  const auto rows = thousand();
  ASSERT_EQ(rows.size(), 6u);
  const char* const expected[] = {"10.0001", "9.9531", "4.0000", "10.0021", "10.0021", "10.0098"};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(fmt::format("{:.4f}", rows[i].sum), expected[i]) << i;
  }
}

// The same loops over the base types, without tensors: bit for bit.
template <class S, class T>
double plain_sum(int count) {
  S sum(0.0f);
  const T term(0.01f);
  for (int i = 0; i < count; ++i) sum = S(static_cast<float>(sum) + static_cast<float>(term));
  return static_cast<double>(static_cast<float>(sum));
}

TEST(Accumulate, AddsInOrderAndRoundsEverySum) {
  for (const int count : {1, 2, 37, 1000, 3000}) {
    const auto sum = [&](size_t i) { return accumulate_terms(accumulate_cases()[i], count).sum; };
    EXPECT_EQ(sum(0), (plain_sum<float, float>(count))) << count;
    EXPECT_EQ(sum(1), (plain_sum<float16, float16>(count))) << count;
    EXPECT_EQ(sum(2), (plain_sum<bfloat16, bfloat16>(count))) << count;
    EXPECT_EQ(sum(3), (plain_sum<float, float16>(count))) << count;
    EXPECT_EQ(sum(4), (plain_sum<float, float16>(count))) << count;
    EXPECT_EQ(sum(5), (plain_sum<float, bfloat16>(count))) << count;
  }
}

// As in the lesson: 2^-7 a step in FP16 beyond 8, nothing in BF16 at 4; the terms' rounding.
TEST(Accumulate, TheLastAdditionShowsWhy) {
  const auto rows = thousand();
  EXPECT_NEAR(rows[0].last_step, 0.01, 1e-6);  // an FP32 number near 10 is within 2^-21 of it
  EXPECT_EQ(rows[1].last_step, 0.0078125);
  EXPECT_EQ(rows[2].last_step, 0.0);
  EXPECT_EQ(rows[3].term, 0.01000213623046875);
  EXPECT_EQ(rows[5].term, 0.010009765625);
  for (const char* number : {"0.0078", "0.031", "FP32"}) {
    EXPECT_NE(accumulate_lesson().find(number), std::string::npos) << number;
  }
}

TEST(Accumulate, IsATable) {
  Table text(TableFormat::text, kTextWidth, "quern-test");
  Table json(TableFormat::json, kTextWidth, "quern-test");
  const AccumulateRow row = accumulate_terms(accumulate_cases()[1], 1000);
  const std::string line = text.add(table_row(row));
  EXPECT_EQ(line.substr(0, 12), "sum in terms");
  for (const char* part : {"FP16 ", " 9.9531 ", " -0.469 ", " 0.007812"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << "\n" << line;
  }
  const auto parsed = nlohmann::json::parse(json.add(table_row(row)));
  EXPECT_EQ(parsed.at("peer"), "quern-test");
  EXPECT_EQ(parsed.at("sum_dtype"), "FP16");
  EXPECT_EQ(parsed.at("count"), 1000);
  EXPECT_DOUBLE_EQ(parsed.at("sum"), 9.9531);
}

}  // namespace
}  // namespace quern
