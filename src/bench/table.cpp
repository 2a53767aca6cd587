#include "bench/table.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/rounded.h"
#include "config/config.h"
#include "config/config_parse.h"

namespace quern {

namespace {

std::string extents_text(const std::vector<int64_t>& extents) {
  std::string text;
  for (const int64_t extent : extents) text += cat(text.empty() ? "" : " x ", extent);
  return text;
}

// `yes`, `no`: how a truth value is spelled.
std::string cell_text(const Cell& cell, int decimals, const char* yes, const char* no) {
  switch (cell.kind()) {
    case Cell::Kind::nothing: return "";
    case Cell::Kind::text: return cell.text();
    case Cell::Kind::integer: return fmt::format("{}", cell.integer());
    case Cell::Kind::number: return fmt::format("{:.{}f}", cell.number(), decimals);
    case Cell::Kind::truth: return cell.truth() ? yes : no;
    case Cell::Kind::extents: return extents_text(cell.extents());
  }
  fail("table: unknown kind of cell");
}

nlohmann::ordered_json json_value(const Cell& cell, int decimals) {
  switch (cell.kind()) {
    case Cell::Kind::nothing: return nullptr;
    case Cell::Kind::text: return cell.text();
    case Cell::Kind::integer: return cell.integer();
    case Cell::Kind::number: return rounded(cell.number(), decimals);
    case Cell::Kind::truth: return cell.truth();
    case Cell::Kind::extents: return cell.extents();
  }
  fail("table: unknown kind of cell");
}

// RFC 4180, 2.5 to 2.7.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

// A bar would end the cell and a line's end the row.
std::string markdown_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c == '\n' || c == '\r' ? ' ' : c;
  }
  return escaped;
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string join(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}

}  // namespace

bool Cell::missing() const {
  return kind_ == Kind::nothing || (kind_ == Kind::number && !std::isfinite(number_));
}

TableFormat parse_table_format(const std::string& name) {
  if (name == "text") return TableFormat::text;
  if (name == "markdown") return TableFormat::markdown;
  if (name == "csv") return TableFormat::csv;
  if (name == "json") return TableFormat::json;
  throw UsageError(cat("--format is '", name, "', expected text, markdown, csv or json",
                       did_you_mean(name, {"text", "markdown", "csv", "json"})));
}

Table::Table(std::vector<Column> columns, TableFormat format)
    : columns_(std::move(columns)), format_(format) {}

std::vector<std::string> Table::shown(const std::vector<Cell>& cells, size_t count) const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) {
    if (columns_[i].name.empty()) continue;
    texts.push_back(cells[i].missing() ? "-"
                                       : cell_text(cells[i], columns_[i].decimals, "yes", "no"));
  }
  return texts;
}

std::string Table::head() const {
  std::vector<std::string> names, keys, rules;
  for (const Column& column : columns_) {
    if (!column.key.empty()) keys.push_back(csv_field(column.key));
    if (column.name.empty()) continue;
    names.push_back(column.name);
    rules.emplace_back(column.align == Align::left ? ":---" : "---:");
  }
  switch (format_) {
    case TableFormat::text: return text_row(names, nullptr);
    case TableFormat::markdown:
      return markdown_row(names, nullptr) + "| " + join(rules, " | ") + " |\n";
    case TableFormat::csv: return join(keys, ",") + ",error\r\n";
    case TableFormat::json: return "";
  }
  fail("table: unknown format");
}

std::string Table::row(std::vector<Cell> cells, const RowError* error) const {
  QUERN_CHECK(cells.size() <= columns_.size(), "table: ", cells.size(), " cells, expected at most ",
              columns_.size());
  const size_t given = cells.size();
  cells.resize(columns_.size());
  const size_t count = error ? given : cells.size();
  switch (format_) {
    case TableFormat::text: return text_row(shown(cells, count), error);
    case TableFormat::markdown: return markdown_row(shown(cells, count), error);
    case TableFormat::csv: return csv_row(cells, error);
    case TableFormat::json: return json_row(cells, error);
  }
  fail("table: unknown format");
}

std::string Table::text_row(const std::vector<std::string>& cells, const RowError* error) const {
  std::string line;
  size_t at = 0;
  for (const Column& column : columns_) {
    if (column.name.empty() || at == cells.size()) continue;
    if (at > 0) line += ' ';
    line += column.align == Align::left ? fmt::format("{:<{}}", cells[at], column.width)
                                        : fmt::format("{:>{}}", cells[at], column.width);
    ++at;
  }
  if (error) line += std::string("  ") + error->text;
  return without_trailing_spaces(line) + "\n";
}

std::string Table::markdown_row(std::vector<std::string> cells, const RowError* error) const {
  size_t names = 0;
  for (const Column& column : columns_) names += column.name.empty() ? 0 : 1;
  if (error && cells.size() < names) cells.emplace_back(error->text);
  cells.resize(names, error ? "" : "-");
  for (std::string& cell : cells) cell = markdown_cell(cell);
  return "| " + join(cells, " | ") + " |\n";
}

std::string Table::csv_row(const std::vector<Cell>& cells, const RowError* error) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (columns_[i].key.empty()) continue;
    if (!cells[i].missing()) {
      line += csv_field(cell_text(cells[i], columns_[i].decimals, "true", "false"));
    }
    line += ',';
  }
  return line + (error ? csv_field(error->code) : "") + "\r\n";
}

std::string Table::json_row(const std::vector<Cell>& cells, const RowError* error) const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (size_t i = 0; i < cells.size(); ++i) {
    if (columns_[i].key.empty() || cells[i].missing()) continue;
    json[columns_[i].key] = json_value(cells[i], columns_[i].decimals);
  }
  if (error) json["error"] = error->code;
  return json.dump() + "\n";
}

}  // namespace quern
