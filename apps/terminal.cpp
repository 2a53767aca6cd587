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

}  // namespace

Terminal Terminal::of_stdout() {
  const std::string kind = environment("TERM");
  Terminal terminal;
  terminal.live = isatty(STDOUT_FILENO) != 0 && !kind.empty() && kind != "dumb";
  terminal.colour = terminal.live && environment("NO_COLOR").empty();
  terminal.unicode = std::setlocale(LC_CTYPE, "") && std::string(nl_langinfo(CODESET)) == "UTF-8";
  return terminal;
}

ScreenSize Terminal::size() const {
  ScreenSize size;
  size.unicode = unicode;
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 && window.ws_row > 0) {
    size.columns = window.ws_col;
    size.rows = window.ws_row;
  }
  return size;
}

void print_error(std::string_view message) {
  std::fputs(cat("quern: ", printable_utf8(message), "\n").c_str(), stderr);
}

bool progress_is_live() {
  return isatty(STDERR_FILENO) != 0;
}

void show_progress(const std::string& line) {
  clear_progress();
  fmt::print(stderr, "{}{}", line, progress_is_live() ? "" : "\n");
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
