// One table for all benchmarks: rows of typed fields, rendered one by one as they arrive, for
// people or for programs.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/enum_names.h"
#include "config/config.h"

namespace quern {

// text: aligned by each column's width. markdown: GitHub's. csv: RFC 4180. json: an object a line.
enum class TableFormat { text, markdown, csv, json };
template <>
inline constexpr std::array kNamesOf<TableFormat>{"text", "markdown", "csv", "json"};

enum class Align { left, right };

struct Column {
  std::string name;  // the heading in text and Markdown; empty: not shown there
  std::string key;   // in CSV's heading and JSON's objects; empty: not shown there
  int decimals = 0;  // of a floating-point number
  int width = 10;    // minimum width in text
  Align align = Align::right;
  int rank = 0;  // columns of the highest rank are dropped when text is too wide; 0: never
};

// Nothing; text; an integer; a number; a boolean (yes or no to people); extents (2 x 4096). Nothing
// and non-finite numbers print as "-" to people, as an empty field in CSV, and have no key in JSON.
using Cell = std::variant<std::monostate, std::string, int64_t, double, bool, std::vector<int64_t>>;

struct Field {
  Column column;
  Cell value;
};
using Fields = std::vector<Field>;

// `out_of_memory`: the allocator's message. If set, the figures are missing: people read the
// settings and "out of memory"; programs get a last field `error`, which is OOM.
struct TableRow {
  Fields settings, figures;
  std::string out_of_memory;
};

inline constexpr size_t kTextWidth = 100, kAnyWidth = 0;

// Every row describes its columns; all rows must have those of the first.
class Table {
 public:
  // `most_width`: of text; kAnyWidth: all columns fit. A longer line has its long names shortened
  // in the middle. Programs get `peer` as the first field unless it is empty.
  Table(TableFormat format, size_t most_width, std::string peer)
      : format_(format), most_width_(most_width), peer_(std::move(peer)) {}

  // Returns the row's line, which ends in a newline. The first row is preceded by `head` (for
  // people only) and the heading.
  std::string add(const TableRow& row, const std::string& head = "");

  // Settings placed before those of the following rows.
  void set_prefix(Fields prefix) { prefix_ = std::move(prefix); }
  const Fields& prefix() const { return prefix_; }
  const std::string& peer() const { return peer_; }
  TableFormat format() const { return format_; }
  bool for_people() const {
    return format_ == TableFormat::text || format_ == TableFormat::markdown;
  }

 private:
  bool is_shown(const Column& column) const {
    return !column.name.empty() && column.rank <= most_rank_;
  }
  size_t text_width(const Fields& fields) const;
  void choose_columns(const Fields& fields);
  std::string heading(const Fields& fields) const;
  std::string text_row(const Fields& fields, const char* error) const;
  std::string markdown_row(const Fields& fields, const char* error) const;

  TableFormat format_;
  size_t most_width_;
  std::string peer_;
  Fields prefix_;
  bool begun_ = false;
  int most_rank_ = 0;         // the highest rank among columns shown in text
  size_t columns_shown_ = 0;  // in Markdown
};

// A configuration key as a column. `always`: programs get it even if it does not vary.
struct Setting {
  const char *name, *key;
  int width = 9;
  bool always = true;
};

// People get only the columns of keys in `varying`.
Fields setting_fields(const std::vector<Setting>& settings, const Config& config,
                      const std::set<std::string>& varying);

// "vocab 50, batch 4, ...": the vocabulary, and every setting that does not vary.
std::string shared_settings(const std::vector<Setting>& settings, const Config& config,
                            const std::set<std::string>& varying);

// Wraps lines of more than `columns` characters; continuation lines are indented.
std::string wrapped(const std::string& text, size_t columns);

// Rounded to this many decimal places, as JSON prints numbers.
double rounded(double value, int digits);

}  // namespace quern
