#include "terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Whether it is a terminal with escape codes.
bool is_live(int fd) {
  const std::string kind = environment("TERM");
  return isatty(fd) != 0 && !kind.empty() && kind != "dumb";
}

ScreenSize size_of(int fd) {
  ScreenSize size;
  winsize window{};
  if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0) {
    size.columns = window.ws_col;
    size.rows = window.ws_row;
  }
  return size;
}

}  // namespace

Terminal Terminal::of_stdout() {
  Terminal terminal;
  terminal.live = is_live(STDOUT_FILENO);
  terminal.colour = terminal.live && environment("NO_COLOR").empty();
  terminal.unicode = std::setlocale(LC_CTYPE, "") && std::string(nl_langinfo(CODESET)) == "UTF-8";
  return terminal;
}

ScreenSize Terminal::size() const {
  ScreenSize size = size_of(STDOUT_FILENO);
  size.unicode = unicode;
  return size;
}

void print_error(std::string_view message) {
  std::fputs(cat("quern: ", printable_utf8(message), "\n").c_str(), stderr);
}

bool progress_is_live() {
  return is_live(STDERR_FILENO);
}

void show_progress(const std::string& line) {
  if (!progress_is_live()) return fmt::print(stderr, "{}\n", line);
  clear_progress();
  // A terminal may wrap a line that fills its last column.
  fmt::print(stderr, "{}", clipped(line, size_of(STDERR_FILENO).columns - 1));
}

void clear_progress() {
  if (progress_is_live()) fmt::print(stderr, "\r\033[K");
}

std::string fitted(const std::vector<std::string>& fields, int64_t columns) {
  std::string out;
  for (const std::string& field : fields) {
    if (static_cast<int64_t>(out.size() + 2 + field.size()) > columns && !out.empty()) break;
    out += (out.empty() ? "" : "  ") + field;
  }
  return out;
}

}  // namespace quern
