#include "train/report.h"

#include <fstream>
#include <iterator>
#include <set>

#include "base/error.h"
#include "embedded/report_page.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

std::string read_chart_js(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string advice =
      ". On Debian and Ubuntu: apt install libjs-chart.js; or give --chart-js FILE, a chart.min.js "
      "of "
      "version 3";
  QUERN_CHECK(in && !text.empty(), "report: cannot read chart.js at ", path.string(), advice);
  QUERN_CHECK(text.find("Chart.js v3.") < 200, "report: ", path.string(), " is not chart.js 3",
              advice);
  // Inside a <script> element no text may look like its end.
  QUERN_CHECK(text.find("</script") == std::string::npos, "report: ", path.string(),
              " cannot stand inside a page: it holds '</script'");
  return text;
}

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

struct Part {
  std::string_view mark, text;
};

// The page with each mark, which stands in it once and in the order given, replaced by its text.
std::string fill(std::string_view page, std::initializer_list<Part> parts) {
  std::string out;
  for (const Part& part : parts) {
    const size_t at = page.find(part.mark);
    QUERN_CHECK(at != std::string_view::npos, "report: page.html has no ", std::string(part.mark));
    out.append(page.substr(0, at)).append(part.text);
    page.remove_prefix(at + part.mark.size());
  }
  return out.append(page);
}

}  // namespace

fs::path default_chart_js() {
  return QUERN_CHART_JS;
}

std::vector<ReportRun> read_report_runs(const std::vector<fs::path>& folders) {
  std::vector<ReportRun> runs;
  std::multiset<std::string> names;
  std::set<fs::path> seen;
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

std::string report_page(const std::vector<ReportRun>& runs, const std::string& title,
                        const fs::path& chart_js) {
  bool any = false;
  for (const ReportRun& run : runs) any = any || !run.metrics.empty();
  QUERN_CHECK(any, "report: ", runs.empty() ? "no run" : runs[0].folder.string(),
              " has no metrics yet; the first come after log_every steps, 10 unless set otherwise");
  namespace page = embedded::report_page;
  const std::string library = read_chart_js(chart_js);
  const std::string data = report_json(runs, title);
  return fill(page::page_html, {{"{{title}}", escaped(title)},
                                {"{{css}}", page::page_css},
                                {"{{data}}", data},
                                {"{{chart.js}}", library},
                                {"{{charts.js}}", page::charts_js},
                                {"{{page.js}}", page::page_js}});
}

}  // namespace quern
