// One table for all benchmarks: columns, and rows of typed cells that are rendered one by one, as
// they are done, for people or for programs.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace quern {

// text: aligned by each column's width. markdown: GitHub's. csv: RFC 4180. json: an object a line.
enum class TableFormat { text, markdown, csv, json };

// "csv" -> csv. Throws UsageError when there is no such format.
TableFormat parse_table_format(const std::string& name);

enum class Align { left, right };

struct Column {
  std::string name;  // the heading in text and Markdown; empty: not shown there
  std::string key;   // in CSV's heading and JSON's objects; empty: not there
  int decimals = 0;  // of a number
  int width = 10;    // least width in text
  Align align = Align::right;
};

// Nothing; text; an integer; a number; a truth value (yes or no to people); extents (2 x 4096).
// Nothing, and a number that is not finite, is "-" to people, an empty field in CSV and no key in
// JSON.
class Cell {
 public:
  enum class Kind { nothing, text, integer, number, truth, extents };

  Cell() = default;
  Cell(std::string text) : kind_(Kind::text), text_(std::move(text)) {}
  Cell(const char* text) : Cell(std::string(text)) {}
  Cell(double number) : kind_(Kind::number), number_(number) {}
  Cell(std::vector<int64_t> extents) : kind_(Kind::extents), extents_(std::move(extents)) {}
  template <std::signed_integral T>
  Cell(T integer) : kind_(Kind::integer), integer_(integer) {}
  template <std::same_as<bool> T>  // and nothing that merely converts to one
  Cell(T truth) : kind_(Kind::truth), integer_(truth) {}

  Kind kind() const { return kind_; }
  bool missing() const;
  const std::string& text() const { return text_; }
  int64_t integer() const { return integer_; }
  double number() const { return number_; }
  bool truth() const { return integer_ != 0; }
  const std::vector<int64_t>& extents() const { return extents_; }

 private:
  Kind kind_ = Kind::nothing;
  int64_t integer_ = 0;
  double number_ = 0.0;
  std::string text_;
  std::vector<int64_t> extents_;
};

// Why a row has no figures: for people, and as `error` of the JSON object and of the last CSV
// field.
struct RowError {
  const char* text;
  const char* code;
};
inline constexpr RowError kOutOfMemory{"out of memory", "OOM"};

class Table {
 public:
  Table(std::vector<Column> columns, TableFormat format);

  // The heading, ending in a newline; empty for JSON.
  std::string head() const;

  // A line, ending in a newline. Cells stand in the columns' order. Fewer cells than columns: the
  // others are missing. With `error` the cells given are followed by its text. Throws on more cells
  // than columns.
  std::string row(std::vector<Cell> cells, const RowError* error = nullptr) const;

  TableFormat format() const { return format_; }

 private:
  std::string text_row(const std::vector<std::string>& cells, const RowError* error) const;
  std::string markdown_row(std::vector<std::string> cells, const RowError* error) const;
  std::string csv_row(const std::vector<Cell>& cells, const RowError* error) const;
  std::string json_row(const std::vector<Cell>& cells, const RowError* error) const;
  // Of the columns with a name, as people read them; of the first `count` cells.
  std::vector<std::string> shown(const std::vector<Cell>& cells, size_t count) const;

  std::vector<Column> columns_;
  TableFormat format_;
};

}  // namespace quern
