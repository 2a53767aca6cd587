#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "bench/profile_report.h"
#include "profile/folded.h"
#include "profile/summary.h"
#include "profile/trace_json.h"

namespace quern {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void write_file(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file) write(file);
  file.close();
  if (!file) fail(cat("profile: cannot write ", path.string(), ": ", std::strerror(errno)));
}

void write_file(const fs::path& path, const std::string& text) {
  write_file(path, [&](std::ostream& out) { out << text; });
}

const char* name_of(GpuTimes times) {
  switch (times) {
    case GpuTimes::none: return "none";
    case GpuTimes::cupti: return "cupti";
    case GpuTimes::events: return "events";
  }
  fail("profile: unknown kind of GPU times");
}

Json split_json(const StepSplit& split) {
  Json json{{"step_ms", split.step_ms}};
  for (const WorkKind kind : kAllWork) json["work_ms"][name_of(kind)] = split.of(kind);
  for (const IdleKind kind : kAllIdle) json["idle_ms"][name_of(kind)] = split.of(kind);
  json["launch_ms"] = split.launch_ms;
  json["launches"] = split.launches;
  json["wait_ms"] = split.wait_ms;
  return json;
}

// The rows as profile_table prints them in JSON, an object a line.
Json table_json(const Profile& profile, const std::string& group,
                const ProfileReportOptions& options) {
  std::istringstream lines(profile_table(profile, group, options, TableFormat::json));
  Json rows = Json::array();
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(Json::parse(line));
    rows.back().erase("group");
  }
  return rows;
}

std::string profile_json(const Profile& profile, const ProfileReportOptions& options) {
  Json json{{"target", profile.target},
            {"device", profile.device},
            {"note", profile.note},
            {"gpu_times", name_of(profile.gpu_times)},
            {"captured", profile.captured},
            {"steps", profile.steps.size()},
            {"unprofiled_step_ms", profile.unprofiled_step_ms},
            {"summary", summary_in_words(profile)},
            {"split", split_json(split_step(profile))}};
  for (const char* group : {"phase", "module", "op", "shape", "kernel"}) {
    json["tables"][group] = table_json(profile, group, options);
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_tables(const Profile& profile, const fs::path& folder, ProfileReportOptions options) {
  options.rows = 0;
  write_file(folder / "table.txt", profile_report(profile, options, TableFormat::text));
  for (const auto& [group, name] : {std::pair{"phase", "phases.csv"},
                                    {"module", "modules.csv"},
                                    {"op", "ops.csv"},
                                    {"shape", "shapes.csv"},
                                    {"kernel", "kernels.csv"}}) {
    const std::string table = profile_table(profile, group, options, TableFormat::csv);
    if (table.empty()) {
      fs::remove(folder / name);  // of an older profile
    } else {
      write_file(folder / name, table);
    }
  }
}

}  // namespace

void write_profile(const Profile& profile, const fs::path& folder,
                   const ProfileReportOptions& options) {
  check_options(options);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(cat("profile: cannot make the folder ", folder.string(), ": ", error.message()));
  write_file(folder / "trace.json", [&](std::ostream& out) { write_trace(profile, out); });
  write_tables(profile, folder, options);
  write_file(folder / "profile.json", profile_json(profile, options));
  write_file(folder / "cpu.folded", [&](std::ostream& out) { write_cpu_stacks(profile, out); });
  if (profile.gpu_times == GpuTimes::none) {
    fs::remove(folder / "gpu.folded");
    return;
  }
  write_file(folder / "gpu.folded", [&](std::ostream& out) { write_gpu_stacks(profile, out); });
}

}  // namespace quern
