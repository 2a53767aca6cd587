// Runs this program as a child process, whose failure or death leaves the parent alive.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quern {

// During its lifetime, SIGINT and SIGTERM are recorded and forwarded to the child instead of ending
// this process. At most one instance at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the last signal; 0: none
};

// Runs `quern args` with its output in the file `log`, and waits. Returns why it failed: its own
// message or the signal that killed it. Empty when it succeeded, or when an earlier signal kept it
// from starting. Throws when no process can be started.
std::string run_quern(const std::vector<std::string>& args, const std::filesystem::path& log);

}  // namespace quern
