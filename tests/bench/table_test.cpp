#include "bench/table.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Two to everybody, one to people alone, one to programs alone.
Table table_of(TableFormat format) {
  return Table(
      {{"name", "name", 0, 6, Align::left}, {"ms", "ms", 2, 8}, {"share", "", 1, 7}, {"", "bytes"}},
      format);
}

const std::vector<Cell> kRow{std::string("gelu"), 1.005, 12.34, int64_t{42}};

TEST(Table, TextIsAligned) {
  const Table table = table_of(TableFormat::text);
  EXPECT_EQ(table.head(), "name         ms   share\n");
  EXPECT_EQ(table.row(kRow), "gelu       1.00    12.3\n");
  EXPECT_EQ(table.row({std::string("x")}), "x             -       -\n");
  EXPECT_EQ(table.row({std::string("x")}, &kOutOfMemory), "x       out of memory\n");
}

TEST(Table, ALongCellWidensItsRow) {
  EXPECT_EQ(table_of(TableFormat::text).row({std::string("a longer name"), 1e8}),
            "a longer name 100000000.00       -\n");
}

TEST(Table, MarkdownHasARuleAndAsManyCells) {
  const Table table = table_of(TableFormat::markdown);
  EXPECT_EQ(table.head(), "| name | ms | share |\n| :--- | ---: | ---: |\n");
  EXPECT_EQ(table.row(kRow), "| gelu | 1.00 | 12.3 |\n");
  EXPECT_EQ(table.row({std::string("a|b\nc")}), "| a\\|b c | - | - |\n");
  EXPECT_EQ(table.row({std::string("x")}, &kOutOfMemory), "| x | out of memory |  |\n");
}

// RFC 4180: lines end in CRLF; commas, quotes and line ends are quoted, quotes doubled.
TEST(Table, CsvIsThatOfTheRfc) {
  const Table table = table_of(TableFormat::csv);
  EXPECT_EQ(table.head(), "name,ms,bytes,error\r\n");
  EXPECT_EQ(table.row(kRow), "gelu,1.00,42,\r\n");
  EXPECT_EQ(table.row({std::string("a,\"b\"\nc"), kNan}), "\"a,\"\"b\"\"\nc\",,,\r\n");
  EXPECT_EQ(table.row({std::string("x")}, &kOutOfMemory), "x,,,OOM\r\n");
}

TEST(Table, JsonLeavesOutWhatIsMissing) {
  const Table table = table_of(TableFormat::json);
  EXPECT_EQ(table.head(), "");
  EXPECT_EQ(table.row({std::string("gelu"), 1.006, 12.34, int64_t{42}}),
            "{\"name\":\"gelu\",\"ms\":1.01,\"bytes\":42}\n");
  EXPECT_EQ(table.row({std::string("x"), kNan}, &kOutOfMemory),
            "{\"name\":\"x\",\"error\":\"OOM\"}\n");
}

TEST(Table, TruthAndExtentsAreSpelledForTheirReaders) {
  const auto row = [](TableFormat format) {
    return Table({{"causal", "causal", 0, 3}, {"shape", "shape", 0, 3}}, format)
        .row({true, std::vector<int64_t>{2, 4096}});
  };
  EXPECT_EQ(row(TableFormat::text), "yes 2 x 4096\n");
  EXPECT_EQ(row(TableFormat::csv), "true,2 x 4096,\r\n");
  EXPECT_EQ(row(TableFormat::json), "{\"causal\":true,\"shape\":[2,4096]}\n");
}

TEST(Table, RefusesMoreCellsThanColumns) {
  EXPECT_THROW(table_of(TableFormat::text).row(std::vector<Cell>(5)), Error);
}

TEST(TableFormat, IsFoundByName) {
  EXPECT_EQ(parse_table_format("text"), TableFormat::text);
  EXPECT_EQ(parse_table_format("markdown"), TableFormat::markdown);
  EXPECT_EQ(parse_table_format("csv"), TableFormat::csv);
  EXPECT_EQ(parse_table_format("json"), TableFormat::json);
  EXPECT_THROW(parse_table_format("xml"), UsageError);
  expect_error([] { parse_table_format("markdwn"); },
               {"--format is 'markdwn'", "text, markdown, csv or json", "did you mean markdown?"});
}

}  // namespace
}  // namespace quern
