// How long this process has been running.
#pragma once

namespace quern {

// Seconds since the process was started, so with the loading of the program and its libraries
// (Linux counts that in steps of 10 ms); where the system does not say, since its first code ran.
double seconds_since_process_start();

}  // namespace quern
