#include "bench/table.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "config/config.h"

namespace quern {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Two columns for all readers, one for people only, one for programs only; absent by default.
TableRow row_of(const std::string& name, const Cell& ms = {}, const Cell& share = {},
                const Cell& bytes = {}, const std::string& out_of_memory = "") {
  return {{{{"name", "name", 0, 6, Align::left}, name}},
          {{{"ms", "ms", 2, 8}, ms}, {{"share", "", 1, 7}, share}, {{"", "bytes"}, bytes}},
          out_of_memory};
}

const TableRow kRow = row_of("gelu", 1.005, 12.34, 42);
const TableRow kFailed = row_of("x", 1.0, 2.0, 3, "no room");

std::string lines_of(TableFormat format, const std::vector<TableRow>& rows) {
  Table table(format, kAnyWidth, "");
  std::string text;
  for (const TableRow& row : rows) text += table.add(row, "on cpu\n");
  return text;
}

TEST(Table, TextIsAligned) {
  EXPECT_EQ(lines_of(TableFormat::text, {kRow, row_of("x"), kFailed}),
            "on cpu\n"
            "name         ms   share\n"
            "gelu       1.00    12.3\n"
            "x             -       -\n"
            "x       out of memory\n");
}

TEST(Table, ALongCellWidensItsRow) {
  EXPECT_EQ(lines_of(TableFormat::text, {row_of("a longer name", 1e8)}),
            "on cpu\n"
            "name         ms   share\n"
            "a longer name 100000000.00       -\n");
}

TEST(Table, MarkdownHasARuleAndAsManyCells) {
  EXPECT_EQ(lines_of(TableFormat::markdown, {kRow, row_of("a|b\nc"), kFailed}),
            "on cpu\n"
            "| name | ms | share |\n| :--- | ---: | ---: |\n"
            "| gelu | 1.00 | 12.3 |\n"
            "| a\\|b c | - | - |\n"
            "| x | out of memory |  |\n");
}

// RFC 4180: lines end in CRLF; fields with commas, quotes or newlines are quoted, quotes doubled.
TEST(Table, CsvIsThatOfTheRfc) {
  EXPECT_EQ(lines_of(TableFormat::csv, {kRow, row_of("a,\"b\"\nc", kNan), kFailed}),
            "name,ms,bytes,error\r\n"
            "gelu,1.00,42,\r\n"
            "\"a,\"\"b\"\"\nc\",,,\r\n"
            "x,,,OOM\r\n");
}

TEST(Table, JsonLeavesOutWhatIsMissing) {
  EXPECT_EQ(
      lines_of(TableFormat::json, {row_of("gelu", 1.006, 12.34, 42), row_of("x", kNan), kFailed}),
      "{\"name\":\"gelu\",\"ms\":1.01,\"bytes\":42}\n"
      "{\"name\":\"x\"}\n"
      "{\"name\":\"x\",\"error\":\"OOM\"}\n");
}

TEST(Table, TruthAndExtentsAreSpelledForTheirReaders) {
  const TableRow row{{},
                     {{{"causal", "causal", 0, 3}, true},
                      {{"shape", "shape", 0, 3}, std::vector<int64_t>{2, 4096}}},
                     ""};
  const auto line = [&](TableFormat format) {
    Table table(format, kAnyWidth, "");
    table.add(row);
    return table.add(row);
  };
  EXPECT_EQ(line(TableFormat::text), "yes 2 x 4096\n");
  EXPECT_EQ(line(TableFormat::csv), "true,2 x 4096,\r\n");
  EXPECT_EQ(line(TableFormat::json), "{\"causal\":true,\"shape\":[2,4096]}\n");
}

TEST(Table, ProgramsGetThePeerAndThePrefixInFront) {
  Table csv(TableFormat::csv, kAnyWidth, "quern");
  csv.set_prefix({{{"warmup", "warmup", 0, 6}, 5}});
  EXPECT_EQ(csv.add(kFailed, "on cpu\n"), "peer,warmup,name,ms,bytes,error\r\nquern,5,x,,,OOM\r\n");
}

// The widths are 6, 8, 7 and 8. All columns of the highest rank are dropped first.
TEST(Table, TooWideATextLeavesOutByRank) {
  const TableRow row{{{{"name", "name", 0, 6, Align::left}, ""}},
                     {{{"a", "a", 0, 8, Align::right, 2}, {}},
                      {{"b", "b", 0, 7, Align::right, 1}, {}},
                      {{"c", "c", 0, 8, Align::right, 2}, {}}},
                     "no room"};
  const auto head = [&](TableFormat format, size_t most_width) {
    const std::string lines = Table(format, most_width, "").add(row);
    return lines.substr(0, lines.find('\n') + 1);
  };
  EXPECT_EQ(head(TableFormat::text, 32), "name          a       b        c\n");
  EXPECT_EQ(head(TableFormat::text, 31), "name         b\n");
  EXPECT_EQ(head(TableFormat::text, 13), "name\n");
  EXPECT_EQ(head(TableFormat::text, 2), "name\n");
  EXPECT_EQ(head(TableFormat::text, kAnyWidth), head(TableFormat::text, 32));
  EXPECT_EQ(head(TableFormat::csv, 2), "name,a,b,c,error\r\n");
  EXPECT_EQ(head(TableFormat::markdown, 2), head(TableFormat::markdown, 1000));
}

TEST(Table, ShortensNamesOnlyInALineThatIsTooWide) {
  const TableRow row{
      {}, {{{"name", "name", 0, 10, Align::left}, "a.first.last"}, {{"b", "b", 0, 4}, {}}}, ""};
  const auto line = [&](size_t most_width) {
    const std::string text = Table(TableFormat::text, most_width, "").add(row, "a head line\n");
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  EXPECT_EQ(line(17), "a.first.last    -\n");
  EXPECT_EQ(line(16), "a.fi...ast    -\n");
  EXPECT_EQ(line(kAnyWidth), "a.first.last    -\n");
  EXPECT_EQ(Table(TableFormat::text, 15, "").add(row, "seven words in a head of two lines\n"),
            "seven words in\n  a head of two\n  lines\nname          b\na.fi...ast    -\n");
}

}  // namespace
}  // namespace quern
