#include "report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/config_print.h"
#include "support/files.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

class ReportTest : public testing::Test {
 protected:
  // A run of `steps` steps whose loss is 1 / step, with a spike of 50 at step 700.
  fs::path run(const std::string& name, int64_t steps, double lr = 1e-3) {
    Config config;
    config.optimizer.lr = lr;
    config.train.steps = 2000;
    fs::create_directories(folder_ / name);
    save_config(config, folder_ / name / "config.toml");
    MetricsLog log(folder_ / name / "metrics.jsonl", -1);
    for (int64_t step = 1; step <= steps; ++step) {
      StepMetrics m;
      m.step = step;
      m.loss = step == 700 ? 50.0 : 1.0 / static_cast<double>(step);
      m.ms = 10.0;
      m.tokens_per_s = 1000.0;
      m.memory_bytes = 1 << 20;
      m.tokens = 64 * step;
      m.time = 1e9 + static_cast<double>(step);
      log.write(m);
    }
    if (steps > 0) log.write_validation(steps, 0.5);
    if (steps == 2000) log.write_end(steps, "done");
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

TEST(BucketEnds, OneRecordEachWhenTheyFit) {
  EXPECT_EQ(bucket_ends(0, 10), std::vector<size_t>{});
  EXPECT_EQ(bucket_ends(3, 10), (std::vector<size_t>{1, 2, 3}));
}

TEST(BucketEnds, CoverAllAndServeBothAxes) {
  const std::vector<size_t> ends = bucket_ends(1000000, 1000);
  EXPECT_LE(ends.size(), 1002u);
  EXPECT_EQ(ends.front(), 1u);
  EXPECT_EQ(ends[ends.size() - 2], 999999u);
  EXPECT_EQ(ends.back(), 1000000u);
  size_t begin = 0, early = 0;
  for (const size_t end : ends) {
    EXPECT_LT(begin, end);
    EXPECT_LE(end - begin, 2000u) << "a bucket wider than an even part";
    early += end <= 1000;
    begin = end;
  }
  EXPECT_GT(early, 150u) << "half of a logarithmic axis lies there";
}

TEST_F(ReportTest, ThinnedSeriesKeepMeansAndSpikes) {
  const ReportRun r = read_report_run(run("a", 5000));
  const ChartData data = chart_data(r.metrics.steps, 100);
  const Series& loss = data.series[0];
  ASSERT_EQ(loss.name, "loss");
  const Series& mfu = data.series[4];
  ASSERT_EQ(mfu.name, "mfu");
  EXPECT_TRUE(std::ranges::all_of(mfu.mean, [](double x) { return std::isnan(x); })) << "unknown";
  ASSERT_LE(loss.mean.size(), 102u);
  EXPECT_EQ(*std::max_element(loss.high.begin(), loss.high.end()), 50.0);
  EXPECT_EQ(loss.mean.front(), 1.0);
  EXPECT_EQ(loss.mean.back(), 1.0 / 5000);
  EXPECT_EQ(data.step.back(), 5000);
  EXPECT_EQ(data.tokens.back(), 64.0 * 5000);
  EXPECT_NEAR(data.seconds.back(), 50.0, 1e-6);
  const auto at = std::upper_bound(data.step.begin(), data.step.end(), 699) - data.step.begin();
  const auto bucket = static_cast<size_t>(at);
  double sum = 0.0;
  for (int64_t step = data.step[bucket - 1] + 1; step <= data.step[bucket]; ++step) {
    sum += step == 700 ? 50.0 : 1.0 / static_cast<double>(step);
  }
  EXPECT_NEAR(loss.mean[bucket],
              sum / static_cast<double>(data.step[bucket] - data.step[bucket - 1]), 1e-12);
}

TEST_F(ReportTest, SummaryOfARun) {
  ReportRun r = read_report_run(run("a", 20));
  const ReportSummary s = summarize(r);
  EXPECT_EQ(s.status, "at step 20 of 2000");
  EXPECT_EQ(s.loss, 0.05);
  EXPECT_EQ(s.best_val_loss, 0.5);
  EXPECT_EQ(s.best_step, 20);
  EXPECT_EQ(s.tokens, 1280.0);
  EXPECT_NEAR(s.train_seconds, 0.2, 1e-12);
  EXPECT_TRUE(std::isnan(s.wall_seconds)) << "no start time is known";
  // Two processes: 2 + 10 s, a pause, 1 + 5 s.
  r.metrics.steps.clear();
  for (const double time : {110.0, 205.0}) {
    r.metrics.steps.emplace_back();
    r.metrics.steps.back().time = time;
  }
  r.metrics.processes = {{{1, 2.0, "GPU", 7}, 100.0}, {{11, 1.0, "GPU", 7}, 200.0}};
  r.metrics.last_time = 205.0;
  EXPECT_EQ(summarize(r).wall_seconds, 12.0 + 6.0);
  EXPECT_EQ(summarize(r).device, "GPU");
  r.metrics.ended = "stopped";
  EXPECT_TRUE(summarize(r).status.starts_with("stopped at step"));
}

TEST_F(ReportTest, ARunThatFailedAtItsLastStepIsNotDone) {
  ReportRun r = read_report_run(run("a", 2000));
  EXPECT_EQ(summarize(r).status, "done");
  r.metrics.ended = "stopped";
  EXPECT_EQ(summarize(r).status, "stopped at step 2000 of 2000");
  r.metrics.ended = "no space left";
  EXPECT_EQ(summarize(r).status, "failed at step 2000 of 2000: no space left");
  r.metrics.ended.clear();  // killed, or in its last validation
  EXPECT_EQ(summarize(r).status, "at step 2000 of 2000");
  r.metrics.last_time = 0.0;  // by a version that wrote no end
  EXPECT_EQ(summarize(r).status, "done");
}

TEST(Samples, AreSplitAtTheirHeads) {
  const auto samples = parse_samples("--- step 5\n\nTo be\n--- or not\n--- step 10\nx\n");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].step, 5);
  EXPECT_EQ(samples[0].text, "\nTo be\n--- or not");
  EXPECT_EQ(samples[1].text, "x");
  EXPECT_TRUE(parse_samples("").empty());
}

// A sample is only text, whatever it contains: it ends no script and breaks no encoding.
TEST_F(ReportTest, JsonSurvivesAnySample) {
  const fs::path folder = run("a", 3);
  write_file(folder / "samples.txt", "--- step 3\n</script><b>\xFF\xC3\xA9\n");
  const std::string text = report_json(read_report_runs({folder}), "t");
  EXPECT_EQ(text.find('<'), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["runs"][0]["samples"][0]["text"], "</script><b>\uFFFD\u00E9");
}

TEST_F(ReportTest, JsonHasTheSeriesAndTheConfiguration) {
  const auto json = nlohmann::json::parse(
      report_json(read_report_runs({run("a", 30), run("b", 2000, 0.25)}), "t", 500));
  const auto& a = json["runs"][0];
  const auto& b = json["runs"][1];
  EXPECT_EQ(a["series"]["loss"]["mean"][3], 0.25);
  EXPECT_FALSE(a["series"]["loss"].contains("low"));
  EXPECT_TRUE(a["series"]["lr"]["mean"][0].is_number());
  EXPECT_LE(b["series"]["step"].size(), 502u);
  EXPECT_EQ(b["series"]["loss"]["high"].size(), b["series"]["step"].size());
  EXPECT_EQ(b["summary"]["status"], "done");
  EXPECT_EQ(a["validation"]["step"][0], 30);
  for (size_t k = 0; k < json["keys"].size(); ++k) {
    const bool differs = a["config"]["values"][k] != b["config"]["values"][k];
    EXPECT_EQ(differs, json["keys"][k]["name"] == "lr") << json["keys"][k];
  }
}

TEST_F(ReportTest, RunsOfOneNameAreToldApart) {
  const auto runs = read_report_runs({run("x/a", 2), run("y/a", 2), run("c", 2)});
  EXPECT_TRUE(runs[0].name.ends_with("x/a"));
  EXPECT_TRUE(runs[1].name.ends_with("y/a"));
  EXPECT_EQ(runs[2].name, "c");
}

TEST_F(ReportTest, AFolderOfRunsMeansItsRuns) {
  run("sweep/b", 2), run("sweep/a", 2);
  fs::create_directories(folder_ / "sweep/no run");
  fs::create_directory_symlink("b", folder_ / "sweep/a latest");  // one of them
  fs::create_directory_symlink("nowhere", folder_ / "sweep/dead");
  const auto runs = read_report_runs({folder_ / "sweep", run("c", 2)});
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(cat(runs[0].name, runs[1].name, runs[2].name), "abc");
  expect_error([&] { read_report_runs({folder_ / "sweep/no run"}); }, {"it has no config.toml"});
}

TEST_F(ReportTest, ARunGivenTwiceIsAMistake) {
  const std::filesystem::path a = run("a", 2);
  expect_error([&] { read_report_runs({a, a.parent_path() / "." / "a"}); }, {"a is given twice"});
}

TEST_F(ReportTest, PageHoldsAllItNeeds) {
  const std::string page = report_page(read_report_runs({run("a", 3)}), "<a> & b");
  EXPECT_NE(page.find("<title>&lt;a> &amp; b"), std::string::npos);
  EXPECT_NE(page.find("class Plot"), std::string::npos)
      << "the charts are drawn by the page itself";
  EXPECT_EQ(page.find("{{"), std::string::npos) << page.substr(page.find("{{"), 20);
  for (const char* part : {"src=\"", "@import", "url(http", "<link rel=\"style"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

TEST_F(ReportTest, RefusesWhatItCannotShow) {
  run("a", 3);
  const auto empty = read_report_runs({run("empty", 0)});
  ASSERT_EQ(empty[0].warnings.size(), 1u);
  EXPECT_NE(empty[0].warnings[0].find("there are no metrics yet"), std::string::npos);
  expect_error([&] { report_page(empty, "t"); }, {"empty has no metrics"});
  expect_error([&] { read_report_run(folder_ / "nowhere"); }, {"there is no such folder"});
  // An empty run among others gives only a warning.
  report_page(read_report_runs({folder_ / "a", folder_ / "empty"}), "t");
}

TEST_F(ReportTest, AnUnreadableConfigurationIsAWarning) {
  const fs::path folder = run("a", 3);
  write_file(folder / "config.toml", "[model]\nfrom_the_future = 1\n");
  const ReportRun r = read_report_run(folder);
  EXPECT_FALSE(r.config);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("from_the_future"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(report_json({r}, "t"))["runs"][0]["config"].is_null());
}

// The seal of a file edited by hand does not fit.
TEST_F(ReportTest, ADamagedConfigurationIsAWarning) {
  const fs::path folder = run("a", 3), file = folder / "config.toml";
  std::string text = read_file(file);
  text.replace(text.find("steps = 2000"), 12, "steps = 3000");
  write_file(file, text);
  const ReportRun r = read_report_run(folder);
  EXPECT_FALSE(r.config);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("config.toml"), std::string::npos) << r.warnings[0];
  EXPECT_EQ(summarize(r).status, "at step 3");
}

}  // namespace
}  // namespace quern
