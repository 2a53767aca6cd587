// quern watch: shows a run in the terminal while it is running.
#include "report/watch.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "terminal.h"

namespace quern {

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may set it

extern "C" void stop_watching(int) {
  stop_requested = true;
}

void print_screen(const RunWatch& watch, const Terminal& terminal) {
  for (const std::string& line : watch.screen(terminal.size(), unix_time()))
    fmt::print("{}\n", line);
}

void print_lines(RunWatch& watch) {
  for (const std::string& line : watch.new_lines()) fmt::print("{}\n", line);
  std::fflush(stdout);
}

// The terminal's alternate screen, without a cursor. The destructor restores the old screen.
class OtherScreen {
 public:
  OtherScreen() { fmt::print("\033[?1049h\033[?25l"); }
  ~OtherScreen() {
    std::fputs("\033[?25h\033[?1049l", stdout);
    std::fflush(stdout);
  }
  OtherScreen(const OtherScreen&) = delete;
  OtherScreen& operator=(const OtherScreen&) = delete;

  void draw(const RunWatch& watch, const Terminal& terminal) {
    const std::vector<std::string> lines = watch.screen(terminal.size(), unix_time());
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) {
      text += (i > 0 ? "\r\n" : "") + lines[i] + "\033[K";
    }
    std::fputs((text + "\033[J").c_str(), stdout);
    std::fflush(stdout);
  }
};

template <class Show>
void follow(RunWatch& watch, double interval, Show&& show) {
  constexpr double kSlice = 0.1;  // seconds; sleep_for() sleeps on after a signal
  for (show(); !watch.ended() && !stop_requested; show()) {
    for (double left = interval; left > 0.0 && !stop_requested; left -= kSlice) {
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, kSlice)));
    }
    watch.update();
  }
}

void print_warnings(const RunWatch& watch) {
  std::fflush(stdout);
  for (const std::string& warning : watch.metrics().warnings) {
    spdlog::warn("{}", warning);
  }
}

int run_watch(const Arguments& args) {
  const ParsedArgs parsed = parse_command(kWatchCommand, args);
  if (parsed.positional.size() != 1) throw UsageError("watch: expected one run folder");
  const double interval = number_of(parsed, "interval", 0.01, 3600.0);
  RunWatch watch(parsed.positional[0]);
  const Terminal terminal = Terminal::of_stdout();
  if (parsed.on("once")) {
    watch.finish();
    print_screen(watch, terminal);
    print_warnings(watch);
    return 0;
  }
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, stop_watching);
  if (!terminal.live) {
    follow(watch, interval, [&] { print_lines(watch); });
  } else {
    {
      OtherScreen screen;
      follow(watch, interval, [&] { screen.draw(watch, terminal); });
    }
    print_screen(watch, terminal);
  }
  print_warnings(watch);
  return 0;
}

}  // namespace

const Command kWatchCommand{"watch",
                            "follow a run in the terminal",
                            R"(Usage: quern watch RUN [--once] [--interval SECONDS]

Follows a run that another `quern train` writes: progress, losses with their
curve, speed, memory and the newest sample. In a pipe it prints a line for each
record. It ends with the run, or on Ctrl-C; the run then continues.
)",
                            run_watch,
                            {{"once", "show the current state, and end", "", true},
                             {"interval", "seconds between reads of the files", "0.5"}},
                            {},
                            {"follow", "monitor", "tail", "status", "log"}};

}  // namespace quern
