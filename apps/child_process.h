// This program again, as a child process whose failure or death leaves the parent alive.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quern {

// While it exists, SIGINT and SIGTERM are noted and handed on to the child instead of ending this
// process. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the last signal; 0: none
};

// Runs `quern args` with its output in the file `log`, and waits. Returns why it failed: its own
// message or the signal that killed it; empty when it succeeded, and when a signal received before
// it started kept it from starting. Throws when no process can be started.
std::string run_quern(const std::vector<std::string>& args, const std::filesystem::path& log);

}  // namespace quern
