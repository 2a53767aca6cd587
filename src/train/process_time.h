// The running time of this process.
#pragma once

namespace quern {

// Seconds since the start of the process, including the loading of the program and its libraries
// (in steps of 10 ms on Linux); where the system gives no start time, since its first code ran.
double seconds_since_process_start();

}  // namespace quern
