// Named hardware barriers of a block. A block has 16; __syncthreads uses number 0. A kernel names
// the others by types. Each type takes its numbers after those of another:
//   using ScoresReady = NamedBarriers<2, 256>;               // 1 and 2
//   using PartsStored = NamedBarriers<2, 128, ScoresReady>;  // 3 and 4
#pragma once

namespace quern::kernels::cuda {

struct BlockBarrier {
  static constexpr int kEnd = 1;
};

// kCount barriers of kThreads threads (whole warps) each. Threads that only arrive count too.
template <int kCount, int kThreads, class Before = BlockBarrier>
struct NamedBarriers {
  static constexpr int kFirst = Before::kEnd, kEnd = kFirst + kCount;
  static_assert(kEnd <= 16 && kThreads % 32 == 0);

  // Waits for all threads of barrier i.
  __device__ static __forceinline__ void sync(int i = 0) {
    asm volatile("bar.sync %0, %1;" ::"r"(kFirst + i), "r"(kThreads) : "memory");
  }
  // Counts this thread without waiting.
  __device__ static __forceinline__ void arrive(int i = 0) {
    asm volatile("bar.arrive %0, %1;" ::"r"(kFirst + i), "r"(kThreads) : "memory");
  }
};

}  // namespace quern::kernels::cuda
