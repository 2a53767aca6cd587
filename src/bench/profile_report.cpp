#include "bench/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "config/config_parse.h"
#include "io/atomic_file.h"
#include "io/folder.h"
#include "profile/time/folded.h"
#include "profile/time/summary.h"
#include "profile/time/trace_json.h"

namespace quern {

namespace {

const std::vector<std::string> kGroups{"step", "phase", "module", "op", "shape", "kernel"};
constexpr auto& kTables = kNamesOf<GroupBy>;  // with a file each
const std::vector<std::string> kSortKeys{"cpu", "cpu-self", "gpu", "gpu-self", "calls", "name"};
constexpr size_t kSentenceWidth = 120;  // of the words above the tables
constexpr size_t kMostName = 50, kMostShapes = 44, kMostKernel = 72;  // limits in tables for people

void check_word(const char* flag, const std::string& word, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  throw UsageError(fmt::format("--{} has '{}', expected {}{}", flag, word, fmt::join(known, ", "),
                               did_you_mean(word, known)));
}

GroupBy group_of(const std::string& group) {
  const auto at = std::ranges::find(kTables, group) - kTables.begin();
  QUERN_CHECK(at < std::ssize(kTables), "profile: unknown table ", group);
  return static_cast<GroupBy>(at);
}

// The parts of a step as rows of the same type as the others.
std::vector<ProfileRow> rows_of_step(const Profile& profile) {
  const StepSplit split = split_step(profile);
  std::vector<ProfileRow> rows;
  const auto add = [&](const std::string& name, double ms) {
    ProfileRow row;
    row.name = name;
    (profile.has_gpu_times() ? row.gpu_total : row.cpu_total) = ms;
    (profile.has_gpu_times() ? row.gpu_self : row.cpu_self) = ms;
    rows.push_back(row);
  };
  for (const WorkKind kind : values_of<WorkKind>()) add(name_of(kind), split.of(kind));
  for (const IdleKind kind : values_of<IdleKind>())
    add(cat("idle: ", name_of(kind)), split.of(kind));
  return rows;
}

std::string sort_key(const std::string& group, const std::string& asked, bool gpu) {
  std::string key = asked;
  if (key.empty()) key = group == "phase" || group == "module" ? "gpu" : "gpu-self";
  if (!gpu && key.starts_with("gpu")) key.replace(0, 3, "cpu");
  return key;
}

double value_of(const ProfileRow& row, const std::string& key) {
  if (key == "cpu") return row.cpu_total;
  if (key == "cpu-self") return row.cpu_self;
  if (key == "gpu") return row.gpu_total;
  if (key == "gpu-self") return row.gpu_self;
  if (key == "calls") return row.calls;
  fail(cat("profile: unknown key ", key));
}

std::vector<ProfileRow> sorted_rows(const Profile& profile, const std::string& group,
                                    const std::string& asked) {
  if (group == "step") return rows_of_step(profile);
  std::vector<ProfileRow> rows = rows_by(profile, group_of(group));
  const std::string key = sort_key(group, asked, profile.has_gpu_times());
  std::stable_sort(rows.begin(), rows.end(), [&](const ProfileRow& a, const ProfileRow& b) {
    return key == "name" ? a.name < b.name : value_of(a, key) > value_of(b, key);
  });
  return rows;
}

// Cuts the front if `keep_end` is set (a path's last part matters most), else the end.
std::string cut(const std::string& text, size_t most, bool keep_end) {
  if (text.size() <= most) return text;
  const size_t kept = most - 2;
  return keep_end ? ".." + text.substr(text.size() - kept) : text.substr(0, kept) + "..";
}

// One table: its columns, and the rows as fields.
class ProfileTable {
 public:
  ProfileTable(const Profile& profile, std::string group, std::vector<ProfileRow> rows)
      : group_(std::move(group)),
        rows_(std::move(rows)),
        gpu_(profile.has_gpu_times()),
        kernels_(group_ == "kernel"),
        shapes_(group_ == "shape"),
        step_(group_ == "step"),
        nested_(group_ == "phase" || group_ == "module") {
    // Phases' self times do not add up to the whole; kernels' CPU times are only the launches.
    const bool whole = !nested_ && !kernels_;
    for (const ProfileRow& row : whole ? rows_ : rows_by(profile, GroupBy::op)) {
      cpu_ += row.cpu_self;
      gpu_all_ += row.gpu_self;
    }
    size_t name = 16, shapes = 12;
    for (const ProfileRow& row : rows_) {
      name = std::max(name, shown_name(row).size());
      shapes = std::max(shapes, row.shapes.size());
    }
    name_width_ = static_cast<int>(name);
    shapes_width_ = static_cast<int>(std::min(shapes, kMostShapes));
    // Whole numbers, unless some calls happen only in some of the steps.
    const bool calls = std::all_of(rows_.begin(), rows_.end(), [](const ProfileRow& row) {
      return std::abs(row.calls - std::round(row.calls)) < 1e-9;
    });
    call_decimals_ = calls ? 0 : 1;
  }

  std::string text(TableFormat format, size_t most) const {
    Table table(format, kAnyWidth, "");
    std::string text;
    for (size_t i = 0; i < std::min(most, rows_.size()); ++i) {
      text += table.add({{}, fields(rows_[i]), {}});
    }
    return text;
  }

 private:
  std::string shown_name(const ProfileRow& row) const {
    if (kernels_) return cut(short_kernel_name(row.name), kMostKernel, false);
    return cut(row.name, kMostName, group_ == "module");
  }

  // Programs get the same columns of every table; people get those that this one has.
  Fields fields(const ProfileRow& row) const {
    const auto shown = [](bool yes, const char* name) { return std::string(yes ? name : ""); };
    const auto where = [](bool yes, auto value) { return yes ? Cell(value) : Cell(); };
    const std::string heading = step_ ? "part of a step" : shapes_ ? "op" : group_;
    const bool cpu = !kernels_ && !(step_ && gpu_), self = !kernels_ && !step_;
    const bool cpu_details = self && !(shapes_ && gpu_);  // only if the line has room
    const std::string shapes = cut(row.shapes, kMostShapes, false);
    Fields all{
        {{"", "group"}, group_},
        {{heading, "", 0, name_width_, Align::left}, shown_name(row)},
        {{"", "name"}, row.name},
        {{shown(shapes_, "inputs"), "", 0, shapes_width_, Align::left}, where(shapes_, shapes)},
        {{"", "shapes"}, where(shapes_, row.shapes)},
        {{shown(kernels_, "kind"), "kind", 0, 12, Align::left}, where(kernels_, name_of(row.kind))},
        {{shown(!step_, "calls"), "calls", call_decimals_, 7}, where(row.calls > 0.0, row.calls)},
        {{shown(cpu, step_ ? "ms" : "cpu ms"), "cpu_ms", 3, 9}, row.cpu_total},
        {{shown(cpu_details, "self ms"), "cpu_self_ms", 3, 9}, row.cpu_self},
        {{shown(cpu_details, "us/call"), "cpu_us_call", 1, 9}, per_call(row, row.cpu_total)},
        {{shown(cpu, "cpu %"), "cpu_share", 1, 5}, share(row.cpu_total, row.cpu_self, cpu_)}};
    if (!gpu_) return all;
    const Cell launch = row.cpu_total > 0.0 ? per_call(row, row.cpu_total) : Cell();
    all.insert(all.end(),
               {{{step_ || kernels_ ? "ms" : "gpu ms", "gpu_ms", 3, 9}, row.gpu_total},
                {{shown(self, "self ms"), "gpu_self_ms", 3, 9}, row.gpu_self},
                {{shown(!step_, "us/call"), "gpu_us_call", 1, 9}, per_call(row, row.gpu_total)},
                {{"gpu %", "gpu_share", 1, 5}, share(row.gpu_total, row.gpu_self, gpu_all_)},
                {{shown(kernels_, "launch us"), "", 1, 9}, launch}});
    return all;
  }

  static Cell per_call(const ProfileRow& row, double ms) {
    return row.calls > 0.0 ? Cell(ms * 1e3 / row.calls) : Cell();
  }

  Cell share(double total, double self, double all) const {
    return all > 0.0 ? Cell(100.0 * (nested_ ? total : self) / all) : Cell();
  }

  std::string group_;
  std::vector<ProfileRow> rows_;
  bool gpu_, kernels_, shapes_, step_, nested_;
  int name_width_ = 0, shapes_width_ = 0, call_decimals_ = 0;
  double cpu_ = 0.0, gpu_all_ = 0.0;  // denominators of the shares
};

bool for_programs(TableFormat format) {
  return format == TableFormat::csv || format == TableFormat::json;
}

std::vector<std::string> groups_to_show(const ProfileReportOptions& options, TableFormat format) {
  if (!options.group_by.empty()) return options.group_by;
  if (for_programs(format)) return {"step", "phase", "module", "op", "kernel"};
  return {"phase", "module", "op", "kernel"};
}

std::string title(const Profile& profile) {
  const size_t steps = profile.steps.size();
  return fmt::format("{} on {}{}{}: {} step{}{}\n\n", profile.target, profile.device,
                     profile.ranks.empty() ? "" : ", ", profile.ranks, steps, steps == 1 ? "" : "s",
                     profile.captured ? ", replayed as a CUDA graph" : "");
}

}  // namespace

void check_options(const ProfileReportOptions& options) {
  for (const std::string& group : options.group_by) check_word("group_by", group, kGroups);
  if (!options.sort.empty()) check_word("sort", options.sort, kSortKeys);
  if (options.rows < 0) {
    throw UsageError(fmt::format("--rows is {}, expected at least 0", options.rows));
  }
}

std::string profile_table(const Profile& profile, const std::string& group,
                          const ProfileReportOptions& options, TableFormat format) {
  check_options(options);
  std::vector<ProfileRow> rows = sorted_rows(profile, group, options.sort);
  if (rows.empty()) return "";
  const size_t count = rows.size();
  const bool all = for_programs(format) || options.rows == 0;
  const size_t most = all ? count : static_cast<size_t>(options.rows);
  std::string text = ProfileTable(profile, group, std::move(rows)).text(format, most);
  if (most < count) text += fmt::format("and {} more (--rows 0 shows all)\n", count - most);
  return text;
}

std::string profile_report(const Profile& profile, const ProfileReportOptions& options,
                           TableFormat format) {
  check_options(options);
  const bool words = !for_programs(format);
  std::string text =
      words ? title(profile) + wrapped(summary_in_words(profile), kSentenceWidth) : "";
  bool headed = false;
  for (const std::string& group : groups_to_show(options, format)) {
    std::string table = profile_table(profile, group, options, format);
    if (table.empty()) continue;
    if (words) text += '\n';
    // One heading for all tables, since programs get the same columns of each.
    if (format == TableFormat::csv && headed) table.erase(0, table.find('\n') + 1);
    headed = true;
    text += table;
  }
  return text;
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The text that write(profile, stream) writes.
std::string text_of(void (*write)(const Profile&, std::ostream&), const Profile& profile) {
  std::ostringstream out;
  write(profile, out);
  return out.str();
}

Json split_json(const StepSplit& split) {
  Json json{{"step_ms", split.step_ms}};
  for (const WorkKind kind : values_of<WorkKind>()) json["work_ms"][name_of(kind)] = split.of(kind);
  for (const IdleKind kind : values_of<IdleKind>()) json["idle_ms"][name_of(kind)] = split.of(kind);
  json["communication_ms"] = split.communication_ms;
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
            {"ranks", profile.ranks},
            {"note", profile.note},
            {"gpu_times", name_of(profile.gpu_times)},
            {"captured", profile.captured},
            {"steps", profile.steps.size()},
            {"unprofiled_step_ms", profile.unprofiled_step_ms},
            {"summary", summary_in_words(profile)},
            {"split", split_json(split_step(profile))}};
  for (const char* group : kTables) {
    json["tables"][group] = table_json(profile, group, options);
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_tables(const Profile& profile, const fs::path& folder, ProfileReportOptions options) {
  options.rows = 0;
  write_file_atomically(folder / "table.txt", profile_report(profile, options, TableFormat::text));
  for (const char* group : kTables) {
    const std::string table = profile_table(profile, group, options, TableFormat::csv);
    const fs::path file = folder / cat(group, "s.csv");
    if (table.empty()) {
      remove_tree(file);  // left by an older profile
    } else {
      write_file_atomically(file, table);
    }
  }
}

}  // namespace

void write_profile(const Profile& profile, const fs::path& folder,
                   const ProfileReportOptions& options) {
  check_options(options);
  std::error_code error;
  create_folder(folder, error);
  if (error) fail(cat("profile: cannot make the folder ", folder.string(), ": ", error.message()));
  write_file_atomically(folder / "trace.json", text_of(write_trace, profile));
  write_tables(profile, folder, options);
  write_file_atomically(folder / "profile.json", profile_json(profile, options));
  write_file_atomically(folder / "cpu.folded", text_of(write_cpu_stacks, profile));
  if (profile.gpu_times == GpuTimes::none) {
    remove_tree(folder / "gpu.folded");
    return;
  }
  write_file_atomically(folder / "gpu.folded", text_of(write_gpu_stacks, profile));
}

}  // namespace quern
