#include "bench/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "base/counted.h"
#include "config/config_print.h"
#include "config/config_table.h"
#include "model/model_cost.h"

namespace quern {

namespace {

constexpr size_t kFirst = 3;  // iterations that show the effect of warming up

// Stores the first iterations, warm-up included, and the mean of the remaining measured ones.
void note_first(PhaseResult& result, const std::vector<double>& warmup,
                const std::vector<double>& measured) {
  std::vector<double> all = warmup;
  all.insert(all.end(), measured.begin(), measured.end());
  const std::span<const double> times = all;
  const auto first = times.first(std::min(kFirst, times.size()));
  const auto rest = times.subspan(std::max(first.size(), warmup.size()));
  result.first.assign(first.begin(), first.end());
  result.rest = std::accumulate(rest.begin(), rest.end(), 0.0) / static_cast<double>(rest.size());
}

void measure_launched(PhaseResult& result, PhaseRunner& runner, const StepBenchOptions& options) {
  const size_t parts = part_count(result.phase);
  const std::array peaks{&result.forward_peak, &result.backward_peak, &result.optimizer_peak};
  const auto iterate = [&](int64_t count) {
    size_t part = 0;
    current_allocator().reset_peak();
    return time_rounds(0, count, parts, [&](const Mark& mark) {
      runner.launch([&] {
        mark();
        int64_t& peak = *peaks[part++ % parts];
        peak = std::max(peak, current_allocator().stats().peak_allocated);
        current_allocator().reset_peak();
      });
    });
  };
  const std::vector<double> warmup = iterate(options.warmup);
  const ProfiledRange profiled("launched");
  const std::vector<double> measured = iterate(options.steps);

  result.launched = summarize(sums_of(measured, parts));
  note_first(result, sums_of(warmup, parts), sums_of(measured, parts));
  const std::array summaries{&result.forward, &result.backward, &result.optimizer};
  for (size_t i = 0; i < parts; ++i) {
    *summaries[i] = summarize(part_of(measured, parts, i));
    result.peak_bytes = std::max(result.peak_bytes, *peaks[i]);
  }
}

Summary measure_replayed(PhaseRunner& runner, const StepBenchOptions& options) {
  const int64_t warmup = std::max(options.warmup, kCaptureWarmup);
  for (int64_t i = 0; i < warmup; ++i) runner.replay();
  Context::current().synchronize();
  const ProfiledRange profiled("measure");
  return summarize(time_rounds(0, options.steps, 1, [&](const Mark& mark) {
    runner.replay();
    mark();
  }));
}

void measure(PhaseResult& result, const Config& config, const StepBenchOptions& options) {
  PhaseRunner runner(config, result.phase);
  measure_launched(result, runner, options);
  result.total = result.launched;
  result.captured = captures_steps(config.compute);
  if (!result.captured) return;
  Allocator& allocator = current_allocator();
  allocator.release_cached();  // makes room for the graph's own memory
  allocator.reset_peak();
  result.total = measure_replayed(runner, options);
  result.peak_bytes = std::max(result.peak_bytes, allocator.stats().peak_allocated);
}

PhaseResult bench_phase(Phase phase, const Config& config, const StepBenchOptions& options) {
  PhaseResult result;
  result.phase = phase;
  const std::string failure = out_of_memory_in([&] { measure(result, config, options); });
  if (!failure.empty()) {
    result = {};  // drops figures from before memory ran out
    result.phase = phase;
    result.out_of_memory = failure;
    return result;
  }
  const auto tokens = static_cast<double>(config.train.batch * config.model.context);
  const double flops = tokens * flops_per_token(config.model, config.model.context);
  const double seconds = result.total.median / 1e3;
  result.tokens_per_second = tokens / seconds;
  result.tflops = (phase == Phase::fwd ? flops / 3 : flops) / seconds / 1e12;
  return result;
}

}  // namespace

StepBenchResult bench_step(const Config& config, const StepBenchOptions& options) {
  check_vocabulary(config);
  const auto start = std::chrono::steady_clock::now();
  StepBenchResult result;
  result.config = config;
  result.device = cat(Context::current().device());
  result.parameters = parameter_count(config.model);
  result.flops_per_step = flops_per_token(config.model, config.model.context) *
                          static_cast<double>(config.train.batch * config.model.context);
  for (const Phase phase : options.phases) {
    result.phases.push_back(bench_phase(phase, config, options));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

namespace {

using Json = nlohmann::ordered_json;

int64_t whole_mebibytes(int64_t bytes) {
  return std::llround(mebibytes(bytes));
}

std::string part_row(const char* name, const Summary& ms, int64_t peak) {
  return fmt::format("  {:<10} {:>10.3f} {:>10.3f} {:>9.3f}{}\n", name, ms.median, ms.mean, ms.std,
                     peak > 0 ? fmt::format(" {:>9}", whole_mebibytes(peak)) : "");
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
                  name_of(result.phase), ms.median, ms.mean, ms.std,
                  whole_mebibytes(result.peak_bytes), result.tokens_per_second, result.tflops);
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

const std::vector<Setting> kSettings{
    {"size", "size", 15},         {"ctx", "ctx", 6},
    {"batch", "batch", 5},        {"precision", "dtype"},
    {"attention", "attn"},        {"kernels", "kernels", 7},
    {"graph", "graph", 5, false}, {"moments", "moments", 7, false}};

TableRow phase_row(const StepBenchResult& result, const PhaseResult& phase,
                   const std::set<std::string>& varying) {
  const Summary& ms = phase.total;
  const size_t parts = part_count(phase.phase);
  const auto part = [&](size_t i, auto value) { return i < parts ? Cell(value) : Cell(); };
  const auto first = [&](size_t i) {
    return i < phase.first.size() ? Cell(phase.first[i]) : Cell();
  };
  const auto time = [](const char* name, const char* key, int width, int rank) {
    return Column{name, key, 3, width, Align::right, rank};
  };
  const auto peak = [](const char* name, const char* key, int rank) {
    return Column{name, key, 0, 8, Align::right, rank};
  };
  Fields settings = setting_fields(kSettings, result.config, varying);
  settings.insert(settings.end(), {{{"", "vocab"}, result.config.model.vocab_size},
                                   {{"", "params"}, result.parameters},
                                   {{"phase", "phase", 0, 6, Align::left}, name_of(phase.phase)}});
  return {settings,
          {{time("median ms", "ms", 10, 0), ms.median},
           {time("mean ms", "mean", 10, 2), ms.mean},
           {time("std ms", "std", 8, 0), ms.std},
           {time("95 % ms", "ci95", 8, 2), ms.ci95},
           {time("fwd ms", "fwd_ms", 9, 1), phase.forward.median},
           {time("bwd ms", "bwd_ms", 9, 1), part(1, phase.backward.median)},
           {time("opt ms", "opt_ms", 9, 1), part(2, phase.optimizer.median)},
           {peak("peak MiB", "peak_mib", 0), whole_mebibytes(phase.peak_bytes)},
           {peak("fwd MiB", "fwd_peak_mib", 3), whole_mebibytes(phase.forward_peak)},
           {peak("bwd MiB", "bwd_peak_mib", 3), part(1, whole_mebibytes(phase.backward_peak))},
           {peak("opt MiB", "opt_peak_mib", 3), part(2, whole_mebibytes(phase.optimizer_peak))},
           {time("1st ms", "first_ms", 9, 4), first(0)},
           {time("2nd ms", "second_ms", 9, 4), first(1)},
           {time("3rd ms", "third_ms", 9, 4), first(2)},
           {time("rest ms", "rest_ms", 9, 4), phase.rest},
           {{"tokens/s", "tok_s", 0}, phase.tokens_per_second},
           {{"TFLOP/s", "tflops", 2, 8}, phase.tflops}},
          phase.out_of_memory};
}

// Details beyond the peer's keys. Numbers that are not finite are left out.
void add_details(Json& entry, const PhaseResult& phase) {
  if (std::isfinite(phase.total.ci95)) entry["ci95"] = rounded(phase.total.ci95, 3);
  for (const double ms : phase.first) entry["first_ms"].push_back(rounded(ms, 3));
  if (std::isfinite(phase.rest)) entry["rest_ms"] = rounded(phase.rest, 3);
  const auto add = [&](const std::string& name, const Summary& ms, int64_t peak) {
    entry[name + "_ms"] = rounded(ms.median, 3);
    entry[name + "_peak_mib"] = whole_mebibytes(peak);
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
  const std::string head = fmt::format(
      "{}: {:.1f} M parameters, vocab {}, batch {}, ctx {}; {}, attention {}, kernels {}, on "
      "{}\n\n",
      value("size"), static_cast<double>(result.parameters) / 1e6, value("vocab"), value("batch"),
      value("ctx"), value("precision"), value("attention"), value("kernels"), result.device);
  std::string text = wrapped(head, kTextWidth);
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

std::string step_json(const StepBenchResult& result, const std::string& peer, const Fields& more) {
  const Config& config = result.config;
  Json json;
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
  for (const Field& field : more) {
    const int64_t* count = std::get_if<int64_t>(&field.value);
    json[field.column.key] = count ? Json(*count) : Json(std::get<bool>(field.value));
  }
  for (const PhaseResult& phase : result.phases) {
    Json& entry = json[name_of(phase.phase)];
    if (!phase.out_of_memory.empty()) {
      entry = "OOM";
      continue;
    }
    entry["ms"] = rounded(phase.total.median, 3);
    entry["mean"] = rounded(phase.total.mean, 3);
    entry["std"] = rounded(phase.total.std, 3);
    if (phase.captured) entry["launched_ms"] = rounded(phase.launched.median, 3);
    entry["peak_mib"] = whole_mebibytes(phase.peak_bytes);
    entry["tok_s"] = std::llround(phase.tokens_per_second);
    add_details(entry, phase);
    if (phase.phase == Phase::step) entry["tflops"] = rounded(phase.tflops, 1);
  }
  json["keys"] = Json::object();
  for (const auto& [key, value] : changed_keys(config)) {
    std::visit([&](const auto& v) { json["keys"][key->section][key->name] = v; }, value);
  }
  json["model_tflop_step"] = rounded(result.flops_per_step / 1e12, 3);
  json["setup_s"] = rounded(result.seconds, 1);
  return json.dump();
}

std::string step_rows(Table& table, const StepBenchResult& result,
                      const std::set<std::string>& varying) {
  if (table.format() == TableFormat::json) {
    Fields more = table.prefix();
    if (varying.contains("graph")) {
      more.push_back({{"", "graph"}, result.config.compute.graph});
    }
    return step_json(result, table.peer(), more) + "\n";
  }
  const std::string head =
      cat(shared_settings(kSettings, result.config, varying), ", on ", result.device, "\n\n");
  std::string text;
  for (const PhaseResult& phase : result.phases) {
    text += table.add(phase_row(result, phase, varying), head);
  }
  return text;
}

}  // namespace quern
