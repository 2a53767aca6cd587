#include "bench/memory_study_report.h"

#include <fmt/format.h>

#include <array>

#include "config/config_table.h"
#include "model/model_cost.h"

namespace quern {

namespace {

// A name of a setting, its JSON key and its column's width.
struct Setting {
  const char *name, *key;
  int width;
};
constexpr std::array kSettings{
    Setting{"size", "size", 6},           Setting{"ctx", "ctx", 5},
    Setting{"batch", "batch", 5},         Setting{"precision", "dtype", 9},
    Setting{"attention", "attn", 9},      Setting{"kernels", "kernels", 7},
    Setting{"recompute", "recompute", 9}, Setting{"residual", "residual", 8}};
constexpr std::array kCategoryNames{"params", "grads", "optimizer", "activ.", "workspace", "other"};

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

bool for_people(const Table& table) {
  return table.format() == TableFormat::text || table.format() == TableFormat::markdown;
}

std::vector<Column> setting_columns(const std::set<std::string>& varying) {
  std::vector<Column> columns{{"", "peer"}};
  for (const Setting& setting : kSettings) {
    columns.push_back({varying.contains(setting.name) ? setting.name : "", setting.key, 0,
                       setting.width, Align::left});
  }
  return columns;
}

std::vector<Cell> setting_cells(const Config& config, const std::string& peer) {
  std::vector<Cell> cells{peer};
  for (const Setting& setting : kSettings) cells.emplace_back(value_text(config, setting.name));
  return cells;
}

std::vector<Column> memory_columns(const std::set<std::string>& varying) {
  std::vector<Column> columns = setting_columns(varying);
  columns.push_back({"", "params"});
  columns.push_back({"on", "device", 0, 6, Align::left});
  columns.push_back({"pass", "pass", 0, 7, Align::left});
  columns.push_back({"peak", "peak", 0, 9, Align::left});
  columns.push_back({"MiB", "mib", 1, 9});
  columns.push_back({"", "bytes"});
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const std::string key = cat(name_of(static_cast<MemoryCategory>(i)), "_mib");
    columns.push_back({kCategoryNames[i], key, 1, 9});
  }
  columns.push_back({"off by %", "deviation_percent", 2, 8});
  return columns;
}

std::string shared_settings(const Config& first, const std::set<std::string>& varying) {
  std::string line = fmt::format("vocab {}", first.model.vocab_size);
  for (const Setting& setting : kSettings) {
    if (varying.contains(setting.name)) continue;
    line += fmt::format(", {} {}", setting.name, value_text(first, setting.name));
  }
  return line;
}

}  // namespace

MemoryRows::MemoryRows(TableFormat format, const std::set<std::string>& varying, std::string peer)
    : varying_(varying), peer_(std::move(peer)), table_(memory_columns(varying), format) {}

std::string MemoryRows::head(const MemoryStudy& first) const {
  if (!for_people(table_)) return table_.head();
  return fmt::format("{}; MiB\n\n{}", shared_settings(first.config, varying_), table_.head());
}

std::string MemoryRows::rows(const MemoryStudy& study) const {
  std::vector<Cell> settings = setting_cells(study.config, peer_);
  settings.insert(settings.end(), {parameter_count(study.config.model), study.device,
                                   std::string(name_of(study.pass))});
  const auto row = [&](const char* what, int64_t bytes, const MemoryByCategory& categories,
                       Cell deviation) {
    std::vector<Cell> cells = settings;
    cells.insert(cells.end(), {what, mebibytes(bytes), bytes});
    for (const int64_t part : categories) cells.emplace_back(mebibytes(part));
    cells.push_back(std::move(deviation));
    return table_.row(std::move(cells));
  };
  std::string text = row("predicted", study.predicted.total(), study.predicted.by_category,
                         study.peak_bytes > 0 ? Cell(study.deviation()) : Cell());
  if (!study.measured) return text;
  if (study.out_of_memory.empty()) {
    return text + row("measured", study.peak_bytes, study.by_category, {});
  }
  settings.emplace_back("measured");
  return text + table_.row(std::move(settings), &kOutOfMemory);
}

namespace {

std::vector<Column> block_columns() {
  std::vector<Column> columns = setting_columns({"precision", "recompute"});
  columns.push_back({"module", "module", 0, 24, Align::left});
  columns.push_back({"op", "op", 0, 16, Align::left});
  columns.push_back({"tensor", "tensor", 0, 24, Align::left});
  columns.push_back({"", "inputs"});
  columns.push_back({"bytes/token", "bytes_per_token", 1, 11});
  columns.push_back({"MiB", "mib", 2, 9});
  columns.push_back({"", "bytes"});
  return columns;
}

}  // namespace

BlockRows::BlockRows(TableFormat format, std::string peer)
    : peer_(std::move(peer)), table_(block_columns(), format) {}

std::string BlockRows::head(const BlockStudy& first, const std::string& device) const {
  if (!for_people(table_)) return table_.head();
  return fmt::format("what one block saves for its backward: {}, measured on {}\n\n{}",
                     shared_settings(first.config, {"precision", "recompute"}), device,
                     table_.head());
}

std::string BlockRows::rows(const BlockStudy& study) const {
  const std::vector<Cell> settings = setting_cells(study.config, peer_);
  const auto tokens = static_cast<double>(study.config.train.batch * study.config.model.context);
  const auto row = [&](const char* module, const char* op, const char* name, const char* inputs,
                       int64_t bytes) {
    std::vector<Cell> cells = settings;
    cells.insert(cells.end(), {module, op, name, inputs, static_cast<double>(bytes) / tokens,
                               mebibytes(bytes), bytes});
    return table_.row(std::move(cells));
  };
  std::string text;
  for (const SavedTensor& t : study.tensors) {
    text += row(t.module.c_str(), t.op.c_str(), t.name.c_str(), t.inputs.c_str(), t.bytes);
  }
  text += row("", "", "all", "", study.measured());
  return text + row("", "", "predicted", "", study.predicted);
}

}  // namespace quern
