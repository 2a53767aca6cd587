// quern report: one HTML page about one or several runs.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/counted.h"
#include "base/error.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "io/atomic_file.h"
#include "io/small_file.h"
#include "report/report.h"

namespace quern {

namespace {

constexpr std::string_view kPageBegin = "<!DOCTYPE html>";

std::string title_of(const std::vector<ReportRun>& runs) {
  std::string title = runs[0].name;
  if (runs.size() == 2) title += " and " + runs[1].name;
  if (runs.size() > 2) title += fmt::format(" and {} more runs", runs.size() - 1);
  return title;
}

// An earlier page may be replaced. Any other file, such as a run's log, is a mistake.
void check_out(const std::string& out) {
  if (!std::filesystem::is_regular_file(out)) return;
  const std::string begin = read_if_there(out, kPageBegin.size()).value_or("");
  QUERN_CHECK(begin.empty() || begin == kPageBegin, "report: --out is ", out,
              ", which exists and is no HTML page; choose another name");
}

int run_report(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kReportCommand, args);
  if (parsed.positional.empty()) throw UsageError("report: no run folder; give one or several");
  const std::string& out = parsed.extra.at("out");
  check_out(out);
  const std::vector<ReportRun> runs =
      read_report_runs({parsed.positional.begin(), parsed.positional.end()});
  for (const ReportRun& run : runs) {
    for (const std::string& warning : run.warnings) {
      spdlog::warn("{}", warning);
    }
  }
  const std::string& title = parsed.extra.at("title");
  const std::string page = report_page(runs, title.empty() ? title_of(runs) : title);
  write_file_atomically(out, page);
  fmt::print("{}: {}, {} kB\n", out, counted(std::ssize(runs), "run"), page.size() / 1000);
  return 0;
}

}  // namespace

const Command kReportCommand{"report",
                             "one HTML page about one or several runs",
                             R"(Usage: quern report RUN... [--out FILE] [--title TEXT]

Writes one HTML page about the run folders, or all those in a folder of runs:
losses, learning rate, gradient norm, tokens/s, MFU and memory over the steps,
the configurations' differences, and samples through training. The page is one
file and loads nothing. FILE may be an earlier page, but no other existing file.
)",
                             run_report,
                             {{"out", "the page to write", "report.html"},
                              {"title", "title of the page; by default the runs' names", ""}},
                             {},
                             {"plot", "chart", "dashboard", "compare", "html"}};

}  // namespace quern
