// The output of `quern profile`: tables, the summary in words, the trace and the stacks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/table.h"
#include "profile/time/profile.h"

namespace quern {

struct ProfileReportOptions {
  // Tables to show, of: step, phase, module, op, shape (ops split by their inputs' shapes), kernel.
  // Empty: all but shape; text and Markdown also leave out step, which the words cover.
  std::vector<std::string> group_by;
  // cpu, cpu-self, gpu, gpu-self, calls (largest first), name. Empty: gpu-self, but gpu for phases
  // and modules, which nest. Without GPU times, CPU times replace them.
  std::string sort;
  int64_t rows = 20;  // limit of rows a table in text and Markdown; 0: all
};

// Throws UsageError on an unknown key or group, or a negative number of rows.
void check_options(const ProfileReportOptions& options);

// The summary in words and the tables, for stdout; in CSV and JSON all rows and no words. Times are
// those of one step, the mean of all. Throws as check_options does.
std::string profile_report(const Profile& profile, const ProfileReportOptions& options,
                           TableFormat format);

// One of the tables; empty when it has no rows (kernels without kernel times).
std::string profile_table(const Profile& profile, const std::string& group,
                          const ProfileReportOptions& options, TableFormat format);

// Writes into `folder`, which is created if missing: trace.json; table.txt (all rows),
// profile.json; phases.csv, modules.csv, ops.csv, shapes.csv, kernels.csv; cpu.folded, gpu.folded.
// Without kernel times, old kernels.csv and gpu.folded are removed. Throws like check_options, and
// an Error that names a file that cannot be written.
void write_profile(const Profile& profile, const std::filesystem::path& folder,
                   const ProfileReportOptions& options);

}  // namespace quern
