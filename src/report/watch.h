// A run as text, while it goes on: a screen for a terminal, a line a record for a pipe.
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

// Follows a run folder. Throws when it is none.
class RunWatch {
 public:
  explicit RunWatch(const std::filesystem::path& folder);

  // Looks at the files again; whether the metrics grew.
  bool update();
  // At its end, what is after the last line end counts too: nobody will complete it.
  void finish() { reader_.finish(); }
  // The run said that it ended, or has done its last step, in files that do not say so.
  bool ended() const;
  const RunMetrics& metrics() const { return reader_.metrics(); }

  // What to show at the time `now`, seconds since 1970: lines of at most size.columns characters.
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
  int64_t steps_ = 0;  // in all; 0: not known
  std::optional<Sample> sample_;
  size_t told_steps_ = 0, told_validations_ = 0;
  double told_time_ = 0.0;
  bool told_end_ = false;
};

// A curve of `values` as `rows` lines, the largest value on top, each begun by its scale: thinned
// to the width by means. Nothing for less than two finite values.
std::vector<std::string> text_plot(const std::vector<double>& values, int64_t columns, int64_t rows,
                                   bool unicode);

// A bar of `width` characters, of which the part step / steps is filled.
std::string progress_bar(int64_t step, int64_t steps, int64_t width, bool unicode);

// The first `columns` characters of printable_utf8(text), as one line.
std::string clipped(const std::string& text, int64_t columns);

}  // namespace quern
