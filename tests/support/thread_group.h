// N ranks as threads of one process on the CPU, for tests. With a seed they are simulated: one rank
// runs at a time, from collective to collective, in simulated time. Order, delays and deaths depend
// on the seed alone, so every run can be repeated, and waiting for a limit takes no time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/communicator.h"

namespace quern::testing_support {

struct ThreadGroupOptions {
  uint64_t seed = 0;    // of the simulation; 0: the ranks run at the same time
  int dying_rank = -1;  // throws instead of its collective number `dying_at`; -1: none
  int64_t dying_at = 0;
  std::chrono::milliseconds limit{10000};
  // Only with a seed. Above 0: the dying rank does not throw, but comes later by this many limits.
  double silence = 0.0;
  // A collective ends for a rank as soon as the data that this rank receives have been sent: by the
  // root of a broadcast, by the owners of slices and pieces. Else when all ranks have called it.
  bool eager = false;
};

// One communicator a rank, each for one thread, which destroys it when the rank ends: after that
// the rank counts as gone, and collectives that need it fail. When ranks call different
// collectives, all get an error that names both. After a reduce_scatter the other slices are NaN.
std::vector<std::unique_ptr<Communicator>> thread_group(int size,
                                                        const ThreadGroupOptions& options = {});

}  // namespace quern::testing_support
