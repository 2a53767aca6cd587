#include "terminal.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <sstream>

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

std::string labelled(const std::string& label, const std::string& text, int64_t columns) {
  constexpr size_t kIndent = 12;
  std::string out = fmt::format("{:<{}}", label, kIndent);
  size_t at = out.size();  // position in the line
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (at > kIndent && static_cast<int64_t>(at + 1 + word.size()) > columns) {
      out += fmt::format("\n{:{}}", "", kIndent);
      at = kIndent;
    } else if (at > kIndent) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out;
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
