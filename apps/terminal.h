// Standard output as a terminal: its capabilities, and text that fits into it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/watch.h"

namespace quern {

struct Terminal {
  bool live = false;  // can redraw a line: a terminal with escape codes
  bool colour = false;
  bool unicode = false;

  // Reads TERM, NO_COLOR and the locale.
  static Terminal of_stdout();
  ScreenSize size() const;  // the current size; 80 x 24 when unknown
};

// "quern: MESSAGE" on stderr.
void print_error(std::string_view message);

// Progress on stderr: in a terminal with escape codes one line that is overwritten, clipped to its
// width, else a line for each call.
bool progress_is_live();
void show_progress(const std::string& line);
void clear_progress();

// The fields, two spaces apart, up to the first that does not fit into `columns`.
std::string fitted(const std::vector<std::string>& fields, int64_t columns);

}  // namespace quern
