#include "bench/step_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/rounded.h"
#include "train/config_table.h"

namespace quern {

namespace {

int64_t mebibytes(int64_t bytes) {
  return static_cast<int64_t>(std::llround(static_cast<double>(bytes) / (1 << 20)));
}

std::string part_row(const char* name, const Summary& ms) {
  return fmt::format("  {:<10} {:>10.3f} {:>10.3f} {:>9.3f}\n", name, ms.median, ms.mean, ms.std);
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
  if (result.captured) rows += part_row("launched", result.launched);
  if (result.phase == Phase::fwd) return rows;
  rows += part_row("forward", result.forward) + part_row("backward", result.backward);
  if (result.phase == Phase::step) rows += part_row("optimizer", result.optimizer);
  return rows;
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
  const bool captured = !result.phases.empty() && result.phases[0].captured;
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
    if (phase.phase == Phase::step) entry["tflops"] = rounded(phase.tflops, 1);
  }
  json["model_tflop_step"] = rounded(result.flops_per_step / 1e12, 3);
  json["setup_s"] = rounded(result.seconds, 1);
  return json.dump();
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
