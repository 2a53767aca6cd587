// The report of runs: one HTML page that needs nothing else, no network either.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/report_run.h"

namespace quern {

// The runs as the page's script reads them, JSON in ASCII. `title` heads the page; a series has at
// most about `most_points` points.
std::string report_json(const std::vector<ReportRun>& runs, const std::string& title,
                        size_t most_points = 1500);

// The whole page. Throws when no run has metrics.
std::string report_page(const std::vector<ReportRun>& runs, const std::string& title);

// Reads run folders; a folder of run folders means each of them, by name. Runs of one name get
// longer ones. Throws as read_report_run().
std::vector<ReportRun> read_report_runs(const std::vector<std::filesystem::path>& paths);

}  // namespace quern
