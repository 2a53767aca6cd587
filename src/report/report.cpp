#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/build_info.h"
#include "base/error.h"
#include "config/config_print.h"
#include "config/config_table.h"
#include "embedded/report_page.h"
#include "io/folder.h"
#include "io/html.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

std::string escaped(const std::string& text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '"': html += "&quot;"; break;
      default: html += c;
    }
  }
  return html;
}

// The run folder itself, or the run folders in a folder of runs, by name.
std::vector<fs::path> runs_at(const fs::path& path) {
  std::vector<fs::path> runs;
  if (fs::is_directory(path) && !fs::exists(path / "config.toml")) {
    const fs::path folder = fs::canonical(path);
    for (const fs::path& run : entries_of(path)) {
      // A link to one of the runs adds nothing.
      const bool again = fs::is_symlink(run) && fs::weakly_canonical(run).parent_path() == folder;
      if (!again && fs::exists(run / "config.toml")) runs.push_back(run);
    }
  }
  return runs.empty() ? std::vector{path} : runs;
}

}  // namespace

std::vector<ReportRun> read_report_runs(const std::vector<fs::path>& paths) {
  std::vector<ReportRun> runs;
  std::multiset<std::string> names;
  std::set<fs::path> seen;
  std::vector<fs::path> folders;
  for (const fs::path& path : paths) std::ranges::move(runs_at(path), std::back_inserter(folders));
  for (const fs::path& folder : folders) {
    const bool first = seen.insert(fs::weakly_canonical(folder / ".")).second;
    QUERN_CHECK(first, "report: ", folder.string(), " is given twice");
    runs.push_back(read_report_run(folder));
    names.insert(runs.back().name);
  }
  for (ReportRun& run : runs) {
    if (names.count(run.name) > 1) run.name = run.folder.lexically_normal().string();
  }
  return runs;
}

std::string report_page(const std::vector<ReportRun>& runs, const std::string& title) {
  bool any = false;
  for (const ReportRun& run : runs) any = any || !run.metrics.empty();
  QUERN_CHECK(any, "report: ", runs.empty() ? "no run" : runs[0].folder.string(),
              " has no metrics: the first come after log_every steps, 10 by default; 0 logs none");
  namespace page = embedded::report_page;
  const std::string data = report_json(runs, title);
  std::string script;
  for (const std::string_view part :
       {page::numbers_js, page::plot_js, page::charts_js, page::page_js}) {
    script += part;
  }
  return fill_page(page::page_html, {{"{{title}}", escaped(title)},
                                     {"{{css}}", page::page_css},
                                     {"{{data}}", data},
                                     {"{{script}}", script}});
}

namespace {

using Json = nlohmann::ordered_json;

// A chart cannot show more than six digits; fewer digits halve the page.
Json rounded(double x) {
  if (!std::isfinite(x)) return nullptr;
  const std::string digits = fmt::format("{:.6g}", x);
  double shorter = 0.0;  // also when the digits are of a subnormal number
  std::from_chars(digits.data(), digits.data() + digits.size(), shorter);
  return shorter;
}

Json rounded(const std::vector<double>& values) {
  Json array = Json::array();
  for (const double x : values) array.push_back(rounded(x));
  return array;
}

Json series_json(const ReportRun& run, size_t most_points) {
  const ChartData data = chart_data(run.metrics.steps, most_points);
  Json json = {
      {"step", data.step}, {"tokens", rounded(data.tokens)}, {"seconds", rounded(data.seconds)}};
  for (const Series& series : data.series) {
    json[series.name] = {{"mean", rounded(series.mean)}};
    if (series.low.empty()) continue;
    json[series.name]["low"] = rounded(series.low);
    json[series.name]["high"] = rounded(series.high);
  }
  return json;
}

Json validation_json(const ReportRun& run) {
  Json json = {{"step", Json::array()}, {"val_loss", Json::array()}};
  for (const Validation& v : run.metrics.validations) {
    json["step"].push_back(v.step);
    json["val_loss"].push_back(rounded(v.loss));
  }
  return json;
}

Json summary_json(const ReportRun& run) {
  const ReportSummary s = summarize(run);
  return {{"status", s.status},
          {"step", s.step},
          {"steps", s.steps},
          {"loss", rounded(s.loss)},
          {"best_val_loss", rounded(s.best_val_loss)},
          {"best_step", s.best_step},
          {"tokens", rounded(s.tokens)},
          {"train_seconds", rounded(s.train_seconds)},
          {"wall_seconds", rounded(s.wall_seconds)},
          {"tokens_per_s", rounded(s.tokens_per_s)},
          {"mfu", rounded(s.mfu)},
          {"memory_bytes", s.memory_bytes},
          {"skipped", s.skipped},
          {"parameters", s.parameters},
          {"device", s.device}};
}

std::string value_of(const Config& config, const ConfigKey& key) {
  const ConfigValue value = key.get(config);
  const std::string* text = std::get_if<std::string>(&value);
  return text && key.kind == ValueKind::choice ? *text : to_toml(value);
}

// Every key's value, and its default for the run's model size.
Json config_json(const Config& config) {
  Config defaults;
  find_key("size")->set(defaults, config.model.size);
  Json values = Json::array(), standard = Json::array();
  for (const ConfigKey& key : config_table()) {
    values.push_back(value_of(config, key));
    standard.push_back(value_of(defaults, key));
  }
  return {{"values", values}, {"defaults", standard}};
}

Json run_json(const ReportRun& run, size_t most_points) {
  Json samples = Json::array();
  for (const Sample& sample : run.samples) {
    samples.push_back({{"step", sample.step}, {"text", sample.text}});
  }
  return {{"name", run.name},
          {"warnings", run.warnings},
          {"summary", summary_json(run)},
          {"series", series_json(run, most_points)},
          {"validation", validation_json(run)},
          {"config", run.config ? config_json(*run.config) : Json(nullptr)},
          {"samples", samples}};
}

}  // namespace

std::string report_json(const std::vector<ReportRun>& runs, const std::string& title,
                        size_t most_points) {
  Json keys = Json::array(), all = Json::array();
  for (const ConfigKey& key : config_table()) {
    keys.push_back({{"section", key.section}, {"name", key.name}, {"help", key.help}});
  }
  for (const ReportRun& run : runs) all.push_back(run_json(run, most_points));
  const Json json = {{"title", title},
                     {"version", build_info().version},
                     {"written", std::floor(unix_time())},
                     {"keys", keys},
                     {"runs", all}};
  // A sample is a model's bytes, which need not be UTF-8.
  return json_in_script(json.dump(-1, ' ', true, Json::error_handler_t::replace));
}

}  // namespace quern
