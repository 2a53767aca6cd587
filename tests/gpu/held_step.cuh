// Work that holds a stream until the test lets it go.
#pragma once

#include "kernels/cuda/primitives/launch.cuh"
#include "tensor/cuda_runtime.h"

namespace quern::test {

// In pinned memory, which the GPU reads and writes.
struct Gate {
  int open = 0;       // by the host
  int timed_out = 0;  // by the GPU, which does not wait for a broken test forever
};

inline __device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

static __global__ void wait_for_gate(volatile Gate* gate) {
  constexpr uint64_t kLimit = 20'000'000'000;
  const uint64_t start = nanoseconds();
  while (gate->open == 0) {
    if (nanoseconds() - start < kLimit) continue;
    gate->timed_out = 1;
    return;
  }
}

// Work on a stream that takes until the host releases it.
class HeldStep {
 public:
  HeldStep() { gate_[0] = {}; }
  ~HeldStep() {
    release();
    cuda::synchronize_device();
  }
  HeldStep(const HeldStep&) = delete;
  HeldStep& operator=(const HeldStep&) = delete;

  void start(kernels::cuda::Stream stream) {
    kernels::cuda::launch(wait_for_gate, dim3(1), dim3(1), 0, stream, gate_.get());
  }
  void release() { const_cast<volatile Gate*>(gate_.get())->open = 1; }
  bool timed_out() const { return const_cast<volatile Gate*>(gate_.get())->timed_out != 0; }

 private:
  cuda::HostArray<Gate> gate_ = cuda::host_array<Gate>(1, true);
};

}  // namespace quern::test
