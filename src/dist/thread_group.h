// N ranks as threads of one process on the CPU, for tests: with seeded delays and orders of arrival
// at collectives, and deaths at them, each replayable by its seed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/communicator.h"

namespace quern {

struct ThreadGroupOptions {
  uint64_t seed = 0;    // of the delays and the order in which ranks arrive; 0: no delays
  int dying_rank = -1;  // throws instead of its collective number `dying_at`; -1: none
  int64_t dying_at = 0;
  std::chrono::milliseconds limit{10000};
};

// One communicator a rank; each is used by one thread. Ranks that call different collectives all
// get an error that names both calls. A rank whose communicator is destroyed is gone: the
// collectives of the others fail. After a reduce_scatter the other slices are NaN.
std::vector<std::unique_ptr<Communicator>> thread_group(int size,
                                                        const ThreadGroupOptions& options = {});

}  // namespace quern
