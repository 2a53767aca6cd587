// The skeleton of Hopper's persistent kernels: at most one block a multiprocessor. A block has a
// producer warpgroup, which copies tiles by TMA, and consumer warpgroups of 64 rows each, which
// multiply by wgmma. Each kernel has its own rule for which units of work a block takes.
// Attention's backward has other roles, and divides the registers itself.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cuda/primitives/instructions.cuh"
#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/cuda/primitives/named_barrier.cuh"
#include "kernels/cuda/primitives/tile_ring.cuh"
#include "kernels/cuda/primitives/tma.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace quern::kernels::cuda {

constexpr int hopper_threads(int consumers) {
  return (1 + consumers) * kWarpgroupSize;
}
// Registers a thread, multiples of 8. Their sum over the warpgroups of a block is at most 65536 /
// 128 = 512.
constexpr int producer_registers(int consumers) {
  return consumers == 2 ? 24 : 32;
}
constexpr int consumer_registers(int consumers) {
  return consumers == 2 ? 240 : 160;
}

// Initializes the block's barriers; all threads call it. Returns the warpgroup; 0 is the producer.
template <class Barriers>
__device__ __forceinline__ int start_block(Barriers& barriers) {
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroupSize, 0);  // alike in all lanes
}
// First call of each role: moves registers from the producer to the consumers. All work of the role
// must follow in the same branch; otherwise ptxas drops the move, and spills.
template <int kConsumers>
__device__ __forceinline__ void begin_producing() {
  give_registers<producer_registers(kConsumers)>();
}
template <int kConsumers>
__device__ __forceinline__ void begin_consuming() {
  take_registers<consumer_registers(kConsumers)>();
}

// The order in which consumers issue products. Warpgroup w waits at barrier w, where the one before
// it arrives after its own turn. All have the same number of turns.
template <int kWarpgroups, bool kEnabled, class Before = BlockBarrier>
struct Turns {
  using MyTurn = NamedBarriers<kWarpgroups, 2 * kWarpgroupSize, Before>;
  int warpgroup;

  __device__ __forceinline__ void begin() const {
    if (kEnabled && warpgroup == kWarpgroups - 1) pass();  // the first turn is warpgroup 0's
  }
  __device__ __forceinline__ void wait() const {
    if (kEnabled) MyTurn::sync(warpgroup);
  }
  __device__ __forceinline__ void pass() const {
    if (kEnabled) MyTurn::arrive((warpgroup + 1) % kWarpgroups);
  }
  __device__ __forceinline__ void end() const {
    if (kEnabled && warpgroup == 0) wait();  // consumes the last one's arrival
  }
};

// Starts a persistent kernel for `units` of work.
template <class... Parameters, class... Arguments>
void launch_persistent(void (*kernel)(Parameters...), int64_t units, int consumers,
                       int shared_bytes, Stream stream, Arguments&&... arguments) {
  const int64_t blocks = std::min<int64_t>(units, device_traits().multiprocessors);
  launch(kernel, one_block_each(blocks), dim3(static_cast<unsigned>(hopper_threads(consumers))),
         static_cast<size_t>(shared_bytes), stream, std::forward<Arguments>(arguments)...);
}

}  // namespace quern::kernels::cuda
