#include "bench/profile_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "config/config.h"
#include "profile/time/made_profile.h"
#include "support/file_size_limit.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The rows' first words.
std::vector<std::string> order(const Profile& profile, const std::string& group,
                               const std::string& sort) {
  std::vector<std::string> names;
  for (const std::string& line :
       lines_of(profile_table(profile, group, {{}, sort, 0}, TableFormat::json))) {
    names.push_back(Json::parse(line).at("name"));
  }
  return names;
}

TEST(ProfileReport, TablesAreForReading) {
  EXPECT_EQ(
      profile_table(two_steps(), "op", {}, TableFormat::text),
      R"(op                 calls    cpu ms   self ms   us/call cpu %    gpu ms   self ms   us/call gpu %
linear                 1     0.100     0.100     100.0  12.5     0.200     0.200     200.0  29.9
linear backward        1     0.090     0.050      90.0   6.2     0.250     0.200     250.0  29.9
rope_attention         1     0.070     0.070      70.0   8.8     0.100     0.100     100.0  14.9
optimizer              1     0.100     0.100     100.0  12.5     0.100     0.100     100.0  14.9
cast backward          1     0.040     0.040      40.0   5.0     0.050     0.050      50.0   7.5
(outside)              -     0.440     0.440         -  55.0     0.020     0.020         -   3.0
)");
}

TEST(ProfileReport, NoLineIsWiderThanATerminal) {
  Profile profile = two_steps();
  const std::string long_name(300, 'k');
  profile.device_events[3].name = profile.names.id(long_name);
  profile.ranges[3].shapes = profile.names.id("(" + long_name + ")");
  profile.ranges[3].module = profile.names.id("model." + long_name + ".norm");
  ProfileReportOptions options;
  options.group_by = {"step", "phase", "module", "op", "shape", "kernel"};
  for (const std::string& line : lines_of(profile_report(profile, options, TableFormat::text))) {
    EXPECT_LE(line.size(), 140u) << line;
  }
  EXPECT_TRUE(contains(profile_table(profile, "kernel", {}, TableFormat::csv), long_name));
}

TEST(ProfileReport, AShareStaysInItsLine) {
  Profile profile = two_steps();
  for (size_t i = 0; i < 10; ++i) {  // so that some number ends at the edge
    profile.note.assign(i, 'x');
    for (int k = 0; k < 20; ++k) profile.note += " of 50 %,";
    for (const std::string& line : lines_of(profile_report(profile, {}, TableFormat::text))) {
      EXPECT_FALSE(line.starts_with("  %")) << line;
    }
  }
}

TEST(ProfileReport, ACpuProfileHasNoGpuColumns) {
  const std::string text = profile_report(cpu_step(), {}, TableFormat::text);
  EXPECT_FALSE(contains(text, "gpu")) << text;
  EXPECT_FALSE(contains(text, "kernel")) << text;
  EXPECT_TRUE(contains(text, "cpu ms")) << text;
  EXPECT_FALSE(contains(profile_table(cpu_step(), "op", {}, TableFormat::csv), "gpu_ms"));
}

TEST(ProfileReport, SharesAddUp) {
  for (const std::string group : {"step", "op", "shape", "kernel"}) {
    double sum = 0.0;
    for (const std::string& line :
         lines_of(profile_table(two_steps(), group, {}, TableFormat::json))) {
      sum += Json::parse(line).at("gpu_share").get<double>();
    }
    EXPECT_NEAR(sum, 100.0, 0.3) << group;  // of rounded numbers
  }
  // Shares are of the whole, also in tables with nested rows.
  const std::string phases = profile_table(two_steps(), "phase", {}, TableFormat::json);
  EXPECT_EQ(Json::parse(lines_of(phases)[0]).at("gpu_share"), 44.8);  // 300 of 670
}

TEST(ProfileReport, SortsByItsKeys) {
  const Profile profile = two_steps();
  using Names = std::vector<std::string>;
  EXPECT_EQ(order(profile, "op", "cpu"),
            (Names{"(outside)", "linear", "optimizer", "linear backward", "rope_attention",
                   "cast backward"}));
  EXPECT_EQ(order(profile, "op", "cpu-self"),
            (Names{"(outside)", "linear", "optimizer", "rope_attention", "linear backward",
                   "cast backward"}));
  EXPECT_EQ(order(profile, "op", "gpu")[0], "linear backward");
  EXPECT_EQ(order(profile, "op", "gpu-self")[0], "linear");
  EXPECT_EQ(order(profile, "op", "name")[0], "(outside)");
  EXPECT_EQ(order(profile, "kernel", "calls")[0], kGemm);
  EXPECT_EQ(order(cpu_step(), "op", "gpu")[0], "linear");  // without GPU times, CPU times sort
  EXPECT_EQ(order(profile, "phase", "")[0], "forward");    // by totals
}

TEST(ProfileReport, ShowsSoManyRows) {
  ProfileReportOptions options;
  options.rows = 2;
  const std::vector<std::string> lines =
      lines_of(profile_table(two_steps(), "op", options, TableFormat::text));
  ASSERT_EQ(lines.size(), 4u);  // the heading, two, and the rest in a line
  EXPECT_EQ(lines[3], "and 4 more (--rows 0 shows all)");
  EXPECT_EQ(lines_of(profile_table(two_steps(), "op", options, TableFormat::csv)).size(), 7u);
}

TEST(ProfileReport, ProgramsGetOneHeadingAndNoWords) {
  const std::vector<std::string> lines =
      lines_of(profile_report(two_steps(), {}, TableFormat::csv));
  EXPECT_EQ(lines[0],
            "group,name,shapes,kind,calls,cpu_ms,cpu_self_ms,cpu_us_call,cpu_share,gpu_ms,"
            "gpu_self_ms,gpu_us_call,gpu_share,error\r");
  // step 12 parts, 4 phases, 4 modules, 6 ops, 5 kernels
  EXPECT_EQ(lines.size(), 1u + 12 + 4 + 4 + 6 + 5);
  for (const std::string& line : lines_of(profile_report(two_steps(), {}, TableFormat::json))) {
    EXPECT_TRUE(Json::parse(line).contains("group"));
  }
}

TEST(ProfileReport, AStepsPartsAddUpToIt) {
  double sum = 0.0;
  for (const std::string& line :
       lines_of(profile_table(two_steps(), "step", {}, TableFormat::json))) {
    sum += Json::parse(line).at("gpu_ms").get<double>();
  }
  EXPECT_NEAR(sum, 1.0, 0.03);
}

TEST(ProfileReport, ShapesSplitOps) {
  ProfileReportOptions options;
  options.group_by = {"shape"};
  const std::string text = profile_report(two_steps(), options, TableFormat::markdown);
  EXPECT_TRUE(contains(text, "| op | inputs | calls |")) << text;
  EXPECT_TRUE(contains(text, "| linear | (4, 8) (8, 8) | 1 |")) << text;
}

TEST(ProfileReport, AnEmptyProfileSaysSo) {
  EXPECT_TRUE(contains(profile_report(Profile(), {}, TableFormat::text), "Nothing was recorded."));
}

TEST(ProfileReport, RefusesWhatItDoesNotKnow) {
  const auto check = [](ProfileReportOptions options) {
    return [options] { profile_report(Profile(), options, TableFormat::text); };
  };
  EXPECT_THROW(check({{"ops"}, "", 20})(), UsageError);
  expect_error(check({{"modul"}, "", 20}),
               {"--group_by has 'modul', expected step, phase,", "did you mean module?"});
  expect_error(check({{}, "gpuself", 20}), {"--sort has 'gpuself'", "did you mean gpu-self?"});
  expect_error(check({{}, "", -1}), {"--rows is -1, expected at least 0"});
}

TEST(WriteProfile, WritesEveryFile) {
  const TemporaryFolder folder;
  const fs::path path = folder / "a" / "b";
  write_profile(two_steps(), path, {});
  for (const char* name : {"trace.json", "table.txt", "profile.json", "phases.csv", "modules.csv",
                           "ops.csv", "shapes.csv", "kernels.csv", "cpu.folded", "gpu.folded"}) {
    EXPECT_GT(read_file(path / name).size(), 0u) << name;
  }
  const Json json = Json::parse(read_file(path / "profile.json"));
  EXPECT_EQ(json.at("steps"), 2);
  EXPECT_NEAR(json.at("split").at("step_ms").get<double>(), 1.0, 1e-9);
  EXPECT_NEAR(json.at("split").at("idle_ms").at("synchronisation").get<double>(), 0.13, 1e-9);
  EXPECT_EQ(json.at("tables").at("op").size(), 6u);
  EXPECT_EQ(json.at("tables").at("kernel")[0].at("name"), kGemm);
  EXPECT_TRUE(contains(json.at("summary"), "In a step's 1.00 ms"));
  EXPECT_TRUE(Json::parse(read_file(path / "trace.json")).contains("traceEvents"));
}

// Files that a CPU profile lacks do not stay behind from an older profile.
TEST(WriteProfile, ReplacesAnOlderProfile) {
  const TemporaryFolder folder;
  write_profile(two_steps(), folder.path(), {});
  write_profile(cpu_step(), folder.path(), {});
  EXPECT_FALSE(fs::exists(folder / "kernels.csv"));
  EXPECT_FALSE(fs::exists(folder / "gpu.folded"));
  EXPECT_TRUE(contains(read_file(folder / "cpu.folded"), "forward;linear 40\n"));
}

TEST(WriteProfile, AFullDiskLeavesTheOlderFile) {
  const TemporaryFolder folder;
  write_profile(two_steps(), folder.path(), {});
  const std::string older = read_file(folder / "trace.json");
  const FileSizeLimit limit(100);
  expect_error([&] { write_profile(cpu_step(), folder.path(), {}); },
               {(folder / "trace.json").string(), "File too large"});
  EXPECT_EQ(read_file(folder / "trace.json"), older);
  EXPECT_FALSE(fs::exists(folder / "trace.json.tmp"));
}

TEST(WriteProfile, NamesWhatCannotBeWritten) {
  const TemporaryFolder folder;
  const fs::path file = write_file(folder / "file", "");
  expect_error([&] { write_profile(cpu_step(), file / "below", {}); },
               {"profile: cannot make the folder", (file / "below").string()});
  fs::create_directory(folder / "trace.json");
  expect_error([&] { write_profile(cpu_step(), folder.path(), {}); },
               {(folder / "trace.json").string(), "is not a regular file"});
  if (geteuid() == 0) return;  // root may write everywhere
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  expect_error([&] { write_profile(cpu_step(), folder.path() / "new", {}); }, {"denied"});
  fs::permissions(folder.path(), fs::perms::owner_all);
}

}  // namespace
}  // namespace quern
