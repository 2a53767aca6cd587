// The report of runs: one self-contained HTML page that needs no network.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/report_run.h"

namespace quern {

// The runs as JSON in ASCII, as the page's script reads them. `title` heads the page. A series has
// at most about `most_points` points.
std::string report_json(const std::vector<ReportRun>& runs, const std::string& title,
                        size_t most_points = 1500);

// The whole page. Throws when no run has metrics.
std::string report_page(const std::vector<ReportRun>& runs, const std::string& title);

// Reads run folders. A folder of run folders stands for all of them, by name. Runs with equal names
// get longer ones. Throws like read_report_run().
std::vector<ReportRun> read_report_runs(const std::vector<std::filesystem::path>& paths);

}  // namespace quern
