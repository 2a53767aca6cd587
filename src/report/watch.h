// A running run as text: a screen for a terminal, or a line a record for a pipe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "report/metrics_reader.h"
#include "report/report_run.h"

namespace quern {

struct ScreenSize {
  int64_t columns = 80, rows = 24;
  bool unicode = true;  // the plot in Braille dots, else in ASCII
};

// Follows a run folder. Throws when the folder is not one.
class RunWatch {
 public:
  explicit RunWatch(const std::filesystem::path& folder);

  // Reads the files again. Returns whether the metrics grew.
  bool update();
  // Call at the end of following: text after the last newline counts too.
  void finish() { reader_.finish(); }
  // Whether the run recorded its end, or, in files without such records, made its last step.
  bool ended() const;
  const RunMetrics& metrics() const { return reader_.metrics(); }

  // The screen at time `now`, seconds since 1970: lines of at most size.columns characters.
  std::vector<std::string> screen(const ScreenSize& size, double now) const;
  // A line for each record since the last call, in the order of the steps.
  std::vector<std::string> new_lines();

 private:
  std::string status(double now) const;
  std::vector<std::string> numbers() const;
  std::vector<std::string> sample_lines(const ScreenSize& size, int64_t rows) const;

  RunFolder folder_;
  MetricsReader reader_;
  std::string name_;
  int64_t steps_ = 0;  // total; 0: unknown
  std::optional<Sample> sample_;
  size_t told_steps_ = 0, told_validations_ = 0;
  double told_time_ = 0.0;
  bool told_end_ = false;
};

// A curve of `values` as `rows` lines, largest value on top, each starting with its scale. Values
// are thinned to the width by means. Empty for fewer than two finite values.
std::vector<std::string> text_plot(const std::vector<double>& values, int64_t columns, int64_t rows,
                                   bool unicode);

// 59s, 12m05s, 3h07m; "-" for a number that is not finite.
std::string duration_text(double seconds);

// A bar of `width` characters, filled up to the share step / steps.
std::string progress_bar(int64_t step, int64_t steps, int64_t width, bool unicode);

// The part of printable_utf8(text) that fits in `columns` columns of a terminal, as one line.
std::string clipped(const std::string& text, int64_t columns);

}  // namespace quern
