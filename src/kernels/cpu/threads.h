// The CPU kernels' threads. Results do not depend on their number.
#pragma once

#include <cstdint>

namespace quern::kernels::cpu {

// Sets the number of threads, the calling one included; at least 1. The default is all cores.
void set_thread_count(int count);
int thread_count();

// Calls run(context, piece) for every piece in [0, pieces), on all threads, and returns when all
// have ended. The calling thread works too and waits only for pieces already begun, so a busy
// machine slows it little. A call from within a piece, or during another thread's call, runs only
// on its own thread. `run` must not throw.
void run_pieces(int64_t pieces, void (*run)(const void* context, int64_t piece),
                const void* context);

}  // namespace quern::kernels::cpu
