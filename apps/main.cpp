// quern: runs the command, and turns exceptions into messages and exit codes.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "commands.h"

namespace {

constexpr int kFailure = 1, kUsage = 2;

int report(const char* message, int code) {
  std::fflush(stdout);
  fmt::print(stderr, "quern: {}\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const char* no_color = std::getenv("NO_COLOR");
  spdlog::set_default_logger(spdlog::stderr_color_mt(
      "quern", no_color && *no_color ? spdlog::color_mode::never : spdlog::color_mode::automatic));
  spdlog::set_pattern("%^quern: %l:%$ %v");  // quern: warning: text
  std::signal(SIGXFSZ, SIG_IGN);  // a file past the size limit is an error that names the file
  try {
    const int code = quern::run_program({argv + 1, argv + argc});
    if (std::fflush(stdout) != 0) return report("cannot write to standard output", kFailure);
    return code;
  } catch (const quern::UsageError& error) {
    return report(error.what(), kUsage);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
}
