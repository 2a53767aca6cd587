#include "bench/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "config/config_parse.h"
#include "config/config_table.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

bool is_missing(const Cell& cell) {
  const double* number = std::get_if<double>(&cell);
  return std::holds_alternative<std::monostate>(cell) || (number && !std::isfinite(*number));
}

// `yes` and `no` are the spellings of a boolean.
std::string cell_text(const Field& field, const char* yes, const char* no) {
  const auto text = [&]<class T>(const T& value) -> std::string {
    if constexpr (std::is_same_v<T, std::monostate>) return "";
    if constexpr (std::is_same_v<T, bool>) return value ? yes : no;
    if constexpr (std::is_same_v<T, double>) {
      return fmt::format("{:.{}f}", value, field.column.decimals);
    }
    if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      return fmt::to_string(fmt::join(value, " x "));
    }
    if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, int64_t>) {
      return fmt::format("{}", value);
    }
  };
  return std::visit(text, field.value);
}

std::string shown_text(const Field& field) {
  return is_missing(field.value) ? "-" : cell_text(field, "yes", "no");
}

Json json_value(const Field& field) {
  const auto value = [&]<class T>(const T& value) -> Json {
    if constexpr (std::is_same_v<T, std::monostate>) return nullptr;
    if constexpr (std::is_same_v<T, double>) return rounded(value, field.column.decimals);
    if constexpr (!std::is_same_v<T, std::monostate>) return value;
  };
  return std::visit(value, field.value);
}

// RFC 4180, 2.5 to 2.7.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

// Escapes the bar, which would end the cell, and the newline, which would end the row.
std::string markdown_cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c == '\n' || c == '\r' ? ' ' : c;
  }
  return escaped;
}

std::string csv_row(const Fields& fields, const char* error) {
  std::string line;
  for (const Field& field : fields) {
    if (field.column.key.empty()) continue;
    if (!is_missing(field.value)) line += csv_field(cell_text(field, "true", "false"));
    line += ',';
  }
  return line + error + "\r\n";
}

std::string json_row(const Fields& fields, const char* error) {
  Json json = Json::object();
  for (const Field& field : fields) {
    if (field.column.key.empty() || is_missing(field.value)) continue;
    json[field.column.key] = json_value(field);
  }
  if (*error) json["error"] = error;
  return json.dump() + "\n";
}

// "model.layers.0...rms_norm": at most `width` characters, the middle left out.
std::string shortened(const std::string& text, int width) {
  constexpr std::string_view kGap = "...";
  const size_t most = static_cast<size_t>(std::max(width, 8)), size = text.size();
  if (size <= most) return text;
  const size_t tail = (most - kGap.size()) / 2;
  return cat(text.substr(0, most - kGap.size() - tail), kGap, text.substr(size - tail));
}

void append(Fields& fields, const Fields& more) {
  fields.insert(fields.end(), more.begin(), more.end());
}

}  // namespace

double rounded(double value, int digits) {
  const double unit = std::pow(10.0, digits);
  return std::round(value * unit) / unit;
}

std::string wrapped(const std::string& text, size_t columns) {
  std::string out;
  size_t column = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find_first_of(" \n", begin), text.size() - 1) + 1;
    if (text.compare(end, 1, "%") == 0) {  // keep it with its number
      end = std::min(text.find_first_of(" \n", end), text.size() - 1) + 1;
    }
    if (column + (end - begin) > columns + 1 && column > 0) {
      out.back() = '\n';  // was a space
      out += "  ";
      column = 2;
    }
    out.append(text, begin, end - begin);
    column = text[end - 1] == '\n' ? 0 : column + end - begin;
    begin = end;
  }
  return out;
}

std::string Table::add(const TableRow& row, const std::string& head) {
  const bool failed = !row.out_of_memory.empty();
  Fields fields;
  if (!peer_.empty()) fields.push_back({{"", "peer"}, peer_});
  append(fields, prefix_);
  append(fields, row.settings);
  const size_t settings = fields.size();
  append(fields, row.figures);
  std::string text;
  if (!begun_) {
    choose_columns(fields);
    const bool wraps = format_ == TableFormat::text && most_width_ != kAnyWidth;
    if (for_people()) text = wraps ? wrapped(head, most_width_) : head;
    text += heading(fields);
    begun_ = true;
  }
  for (size_t i = settings; failed && i < fields.size(); ++i) fields[i].value = {};
  if (failed && for_people()) fields.resize(settings);
  switch (format_) {
    case TableFormat::text: return text + text_row(fields, failed ? "out of memory" : "");
    case TableFormat::markdown: return text + markdown_row(fields, failed ? "out of memory" : "");
    case TableFormat::csv: return text + csv_row(fields, failed ? "OOM" : "");
    case TableFormat::json: return text + json_row(fields, failed ? "OOM" : "");
  }
  fail("table: unknown format");
}

size_t Table::text_width(const Fields& fields) const {
  size_t width = 0;
  for (const auto& [column, value] : fields) {
    if (!is_shown(column)) continue;
    width += (width > 0) + std::max(static_cast<size_t>(column.width), column.name.size());
  }
  return width;
}

void Table::choose_columns(const Fields& fields) {
  for (const Field& field : fields) {
    most_rank_ = std::max(most_rank_, field.column.rank);
    columns_shown_ += field.column.name.empty() ? 0 : 1;
  }
  if (format_ != TableFormat::text || most_width_ == kAnyWidth) return;
  while (most_rank_ > 0 && text_width(fields) > most_width_) --most_rank_;
}

std::string Table::heading(const Fields& fields) const {
  Fields names = fields;
  std::string keys, rules = "|";
  for (auto& [column, value] : names) {
    value = column.name;
    if (!column.key.empty()) keys += csv_field(column.key) + ",";
    if (!column.name.empty()) rules += column.align == Align::left ? " :--- |" : " ---: |";
  }
  switch (format_) {
    case TableFormat::text: return text_row(names, "");
    case TableFormat::markdown: return markdown_row(names, "") + rules + "\n";
    case TableFormat::csv: return keys + "error\r\n";
    case TableFormat::json: return "";
  }
  fail("table: unknown format");
}

std::string Table::text_row(const Fields& fields, const char* error) const {
  std::string line;
  for (const bool shorten : {false, true}) {
    line.clear();
    for (const Field& field : fields) {
      if (!is_shown(field.column)) continue;
      const int width = field.column.width;
      std::string text = shown_text(field);
      if (shorten && std::holds_alternative<std::string>(field.value)) {
        text = shortened(text, width);
      }
      if (!line.empty()) line += ' ';
      line += field.column.align == Align::left ? fmt::format("{:<{}}", text, width)
                                                : fmt::format("{:>{}}", text, width);
    }
    if (*error) line += fmt::format("  {}", error);
    line.erase(line.find_last_not_of(' ') + 1);
    if (most_width_ == kAnyWidth || line.size() <= most_width_) break;
  }
  return line + "\n";
}

std::string Table::markdown_row(const Fields& fields, const char* error) const {
  std::vector<std::string> cells;
  for (const Field& field : fields) {
    if (!field.column.name.empty()) cells.push_back(markdown_cell(shown_text(field)));
  }
  if (*error && cells.size() < columns_shown_) cells.emplace_back(error);
  cells.resize(columns_shown_);
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

Fields setting_fields(const std::vector<Setting>& settings, const Config& config,
                      const std::set<std::string>& varying) {
  Fields fields;
  for (const auto& [name, key, width, always] : settings) {
    const bool varies = varying.contains(name);
    if (!varies && !always) continue;
    fields.push_back(
        {{varies ? name : "", key, 0, width, Align::left}, Cell(value_text(config, name))});
  }
  return fields;
}

std::string shared_settings(const std::vector<Setting>& settings, const Config& config,
                            const std::set<std::string>& varying) {
  std::string line = cat("vocab ", config.model.vocab_size);
  for (const Setting& setting : settings) {
    if (varying.contains(setting.name) || !setting.always) continue;
    line += cat(", ", setting.name, " ", value_text(config, setting.name));
  }
  return line;
}

}  // namespace quern
