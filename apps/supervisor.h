// Starts the ranks of a training as processes of this machine, and supervises them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace quern {

// `killall`, systemd and Slurm send a signal to every process, and some of these send it on: what
// comes within this time of the first signal is the same request.
inline constexpr std::chrono::milliseconds kSameRequest{1000};

struct Supervision {
  std::vector<std::string> argv;  // of every rank
  int ranks = 1;
  std::chrono::milliseconds limit{10000};  // from the end of a first rank to that of the last one
  std::string program = "/proc/self/exe";
};

// Runs the ranks and waits for all. Each has QUERN_RANK and the other variables of variables_of(),
// with a store in a fresh folder. Rank 0 has this process's stdout and stderr; the others' stdout
// is dropped, and their stderr passes through line by line, as "rank 2: LINE". SIGINT, SIGTERM and
// SIGHUP go on to the ranks; a second one kills them, unless it comes within kSameRequest. When
// this process dies, all ranks are killed.
//
// When a rank fails, the others may end by themselves; before the limit they get SIGTERM, then
// SIGKILL. A rank that is stopped for nearly as long counts as failed. One message on stderr then
// names the rank that failed first, if there is one that did not end because of another.
//
// Returns the exit code of the rank that is named, 1 where each ended because of another, or else
// rank 0's; 128 plus the signal for a killed one. Codes above 128 are no failures: `quern train`
// returns them when it was asked to stop. Throws when no process can be started.
int supervise(const Supervision& what);

// The exit code of this process when another rank is the cause of its end. Only a supervisor can
// tell it from other failures.
int code_of_follower();

}  // namespace quern
