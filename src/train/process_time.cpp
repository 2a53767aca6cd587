#include "train/process_time.h"

#include <time.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace quern {

namespace {

using Clock = std::chrono::steady_clock;

const Clock::time_point first_code = Clock::now();

// From /proc/self/stat, proc(5): the start is the 20th word after the program's name in brackets,
// in clock ticks since the system booted.
std::optional<double> seconds_by_the_system() {
  constexpr int kWordsBefore = 19;
  std::ifstream file("/proc/self/stat");
  std::string text;
  if (!std::getline(file, text) || text.rfind(')') == std::string::npos) return {};
  std::istringstream words(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < kWordsBefore; ++i) words >> skipped;
  double ticks = 0.0;
  timespec now{};
  if (!(words >> ticks) || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return {};
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return seconds - ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

double seconds_since_process_start() {
  const double own = std::chrono::duration<double>(Clock::now() - first_code).count();
  const std::optional<double> system = seconds_by_the_system();
  constexpr double kLongestLoading = 60.0;  // more means that the clocks disagree
  const bool plausible = system && *system >= own && *system <= own + kLongestLoading;
  return plausible ? *system : own;
}

}  // namespace quern
