#include "bench/step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/rounded.h"
#include "config/config_table.h"

namespace quern {

namespace {

int64_t mebibytes(int64_t bytes) {
  return static_cast<int64_t>(std::llround(static_cast<double>(bytes) / (1 << 20)));
}

std::string part_row(const char* name, const Summary& ms, int64_t peak) {
  return fmt::format("  {:<10} {:>10.3f} {:>10.3f} {:>9.3f}{}\n", name, ms.median, ms.mean, ms.std,
                     peak > 0 ? fmt::format(" {:>9}", mebibytes(peak)) : "");
}

// "  mean +- 0.021 ms (95 %); first iterations 9.101, 4.202, 4.105 ms, the rest 4.100 ms"
std::string detail_row(const PhaseResult& result) {
  std::vector<std::string> first;
  for (const double ms : result.first) first.push_back(fmt::format("{:.3f}", ms));
  std::string line = "  ";
  if (std::isfinite(result.total.ci95)) {
    line += fmt::format("mean +- {:.3f} ms (95 %); ", result.total.ci95);
  }
  line += fmt::format("first iterations {} ms", fmt::join(first, ", "));
  if (std::isfinite(result.rest)) line += fmt::format(", the rest {:.3f} ms", result.rest);
  return line + "\n";
}

std::string phase_rows(const PhaseResult& result) {
  if (!result.out_of_memory.empty()) {
    return fmt::format("{:<12} out of memory\n", name_of(result.phase));
  }
  const Summary& ms = result.total;
  std::string rows =
      fmt::format("{:<12} {:>10.3f} {:>10.3f} {:>9.3f} {:>9} {:>11.0f} {:>9.2f}\n",
                  name_of(result.phase), ms.median, ms.mean, ms.std, mebibytes(result.peak_bytes),
                  result.tokens_per_second, result.tflops);
  if (result.captured) rows += part_row("launched", result.launched, 0);
  if (result.phase != Phase::fwd) {
    rows += part_row("forward", result.forward, result.forward_peak) +
            part_row("backward", result.backward, result.backward_peak);
  }
  if (result.phase == Phase::step) {
    rows += part_row("optimizer", result.optimizer, result.optimizer_peak);
  }
  return rows + detail_row(result);
}

// A name of a setting, its JSON key and its column's width.
struct Setting {
  const char *name, *key;
  int width;
};
constexpr std::array kSettings{Setting{"size", "size", 15},     Setting{"ctx", "ctx", 6},
                               Setting{"batch", "batch", 5},    Setting{"precision", "dtype", 9},
                               Setting{"attention", "attn", 9}, Setting{"kernels", "kernels", 7}};

std::vector<Column> step_columns(const std::set<std::string>& varying) {
  std::vector<Column> columns{{"", "peer"}};
  for (const Setting& setting : kSettings) {
    columns.push_back({varying.contains(setting.name) ? setting.name : "", setting.key, 0,
                       setting.width, Align::left});
  }
  columns.insert(columns.end(), {{"", "vocab"},
                                 {"", "params"},
                                 {"phase", "phase", 0, 6, Align::left},
                                 {"median ms", "ms", 3},
                                 {"mean ms", "mean", 3},
                                 {"std ms", "std", 3, 8},
                                 {"95 % ms", "ci95", 3, 8},
                                 {"fwd ms", "fwd_ms", 3, 9},
                                 {"bwd ms", "bwd_ms", 3, 9},
                                 {"opt ms", "opt_ms", 3, 9},
                                 {"peak MiB", "peak_mib", 0, 8},
                                 {"fwd MiB", "fwd_peak_mib", 0, 8},
                                 {"bwd MiB", "bwd_peak_mib", 0, 8},
                                 {"opt MiB", "opt_peak_mib", 0, 8},
                                 {"1st ms", "first_ms", 3, 9},
                                 {"2nd ms", "second_ms", 3, 9},
                                 {"3rd ms", "third_ms", 3, 9},
                                 {"rest ms", "rest_ms", 3, 9},
                                 {"tokens/s", "tok_s", 0},
                                 {"TFLOP/s", "tflops", 2, 8}});
  return columns;
}

std::vector<Cell> setting_cells(const StepBenchResult& result, const PhaseResult& phase,
                                const std::string& peer) {
  std::vector<Cell> cells{peer};
  for (const Setting& setting : kSettings) {
    cells.emplace_back(value_text(result.config, setting.name));
  }
  cells.insert(cells.end(), {result.config.model.vocab_size, result.parameters,
                             std::string(name_of(phase.phase))});
  return cells;
}

void add_figures(std::vector<Cell>& cells, const PhaseResult& phase) {
  const Summary& ms = phase.total;
  cells.insert(cells.end(), {ms.median, ms.mean, ms.std, ms.ci95});
  const size_t parts = phase.phase == Phase::fwd ? 1 : phase.phase == Phase::fwdbwd ? 2 : 3;
  const std::array summaries{&phase.forward, &phase.backward, &phase.optimizer};
  const std::array peaks{phase.forward_peak, phase.backward_peak, phase.optimizer_peak};
  for (size_t i = 0; i < 3; ++i) {
    cells.emplace_back(i < parts ? Cell(summaries[i]->median) : Cell());
  }
  cells.emplace_back(mebibytes(phase.peak_bytes));
  for (size_t i = 0; i < 3; ++i) cells.emplace_back(i < parts ? Cell(mebibytes(peaks[i])) : Cell());
  for (size_t i = 0; i < 3; ++i) {
    cells.emplace_back(i < phase.first.size() ? Cell(phase.first[i]) : Cell());
  }
  cells.insert(cells.end(), {phase.rest, phase.tokens_per_second, phase.tflops});
}

// Beyond the peer's keys. A number that is not finite has none.
void add_details(nlohmann::ordered_json& entry, const PhaseResult& phase) {
  if (std::isfinite(phase.total.ci95)) entry["ci95"] = rounded(phase.total.ci95, 3);
  for (const double ms : phase.first) entry["first_ms"].push_back(rounded(ms, 3));
  if (std::isfinite(phase.rest)) entry["rest_ms"] = rounded(phase.rest, 3);
  const auto add = [&](const std::string& name, const Summary& ms, int64_t peak) {
    entry[name + "_ms"] = rounded(ms.median, 3);
    entry[name + "_peak_mib"] = mebibytes(peak);
  };
  add("fwd", phase.forward, phase.forward_peak);
  if (phase.phase == Phase::fwd) return;
  add("bwd", phase.backward, phase.backward_peak);
  if (phase.phase == Phase::step) add("opt", phase.optimizer, phase.optimizer_peak);
}

}  // namespace

std::string step_table(const StepBenchResult& result) {
  const Config& config = result.config;
  const auto value = [&](const char* key) { return value_text(config, key); };
  std::string text = fmt::format(
      "{}: {:.1f} M parameters, vocab {}, batch {}, ctx {}; {}, attention {}, kernels {}, on "
      "{}\n\n",
      value("size"), static_cast<double>(result.parameters) / 1e6, value("vocab"), value("batch"),
      value("ctx"), value("precision"), value("attention"), value("kernels"), result.device);
  text += fmt::format("{:<12} {:>10} {:>10} {:>9} {:>9} {:>11} {:>9}\n", "phase", "median ms",
                      "mean ms", "std ms", "peak MiB", "tokens/s", "TFLOP/s");
  for (const PhaseResult& phase : result.phases) text += phase_rows(phase);
  for (const PhaseResult& phase : result.phases) {
    if (!phase.out_of_memory.empty()) {
      text += fmt::format("\n{}: {}\n", name_of(phase.phase), phase.out_of_memory);
    }
  }
  return text;
}

std::string step_json(const StepBenchResult& result, const std::string& peer) {
  const Config& config = result.config;
  nlohmann::ordered_json json;
  json["peer"] = peer;
  json["size"] = config.model.size;
  json["params"] = result.parameters;
  json["batch"] = config.train.batch;
  json["ctx"] = config.model.context;
  json["vocab"] = config.model.vocab_size;
  json["attn"] = value_text(config, "attention");
  json["dtype"] = value_text(config, "precision");
  json["kernels"] = value_text(config, "kernels");
  const bool captured = std::any_of(result.phases.begin(), result.phases.end(),
                                    [](const PhaseResult& phase) { return phase.captured; });
  json["compile"] = captured ? "graph" : "none";
  for (const PhaseResult& phase : result.phases) {
    nlohmann::ordered_json& entry = json[name_of(phase.phase)];
    if (!phase.out_of_memory.empty()) {
      entry = "OOM";
      continue;
    }
    entry["ms"] = rounded(phase.total.median, 3);
    entry["mean"] = rounded(phase.total.mean, 3);
    entry["std"] = rounded(phase.total.std, 3);
    if (phase.captured) entry["launched_ms"] = rounded(phase.launched.median, 3);
    entry["peak_mib"] = mebibytes(phase.peak_bytes);
    entry["tok_s"] = std::llround(phase.tokens_per_second);
    add_details(entry, phase);
    if (phase.phase == Phase::step) entry["tflops"] = rounded(phase.tflops, 1);
  }
  json["model_tflop_step"] = rounded(result.flops_per_step / 1e12, 3);
  json["setup_s"] = rounded(result.seconds, 1);
  return json.dump();
}

StepRows::StepRows(TableFormat format, const std::set<std::string>& varying, std::string peer)
    : varying_(varying), peer_(std::move(peer)), table_(step_columns(varying), format) {}

std::string StepRows::head(const Config& first, const std::string& device) const {
  if (table_.format() == TableFormat::csv || table_.format() == TableFormat::json) {
    return table_.head();
  }
  std::string line = fmt::format("vocab {}", first.model.vocab_size);
  for (const Setting& setting : kSettings) {
    if (varying_.contains(setting.name)) continue;
    line += fmt::format(", {} {}", setting.name, value_text(first, setting.name));
  }
  return fmt::format("{}, on {}\n\n{}", line, device, table_.head());
}

std::string StepRows::rows(const StepBenchResult& result) const {
  if (table_.format() == TableFormat::json) return step_json(result, peer_) + "\n";
  std::string text;
  for (const PhaseResult& phase : result.phases) {
    std::vector<Cell> cells = setting_cells(result, phase, peer_);
    const bool fitted = phase.out_of_memory.empty();
    if (fitted) add_figures(cells, phase);
    text += table_.row(std::move(cells), fitted ? nullptr : &kOutOfMemory);
  }
  return text;
}

std::string gemm_table(const GemmRates& rates, double step_seconds) {
  std::string text =
      fmt::format("{:<18} {:>7} {:>7} {:>7} {:>6} {:>6} {:>10} {:>9} {:>9}\n", "matrix product",
                  "m", "n", "k", "batch", "count", "MFLOP", "GFLOP/s", "ms/step");
  for (const GemmRate& rate : rates.products) {
    const kernels::Gemm& g = rate.product.gemm;
    text += fmt::format("{:<18} {:>7} {:>7} {:>7} {:>6} {:>6} {:>10.1f} {:>9.1f} {:>9.3f}\n",
                        rate.product.name, g.m, g.n, g.k, g.batch, rate.product.count,
                        rate.product.flops / 1e6, rate.product.flops / rate.seconds / 1e9,
                        rate.seconds * 1e3);
  }
  const double step_rate = rates.flops / step_seconds;
  return text + fmt::format(
                    "matmul of the step: {:.1f} GFLOP/s; SGEMM at its shapes: {:.1f} GFLOP/s; "
                    "ratio {:.3f}\n",
                    step_rate / 1e9, rates.flops_per_second() / 1e9,
                    step_rate / rates.flops_per_second());
}

}  // namespace quern
