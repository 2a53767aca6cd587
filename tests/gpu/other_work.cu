#include "other_work.h"

#include <random>

#include "device_buffer.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "tensor/cuda_runtime.h"

namespace quern::test {

namespace {

// Reads and writes memory for a time.
__global__ void disturb(float* memory, int64_t count, int64_t nanoseconds) {
  int64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  do {
    memory[i % count] += 1.0f;
    i += threads;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

}  // namespace

OtherWork::OtherWork() : thread_([this] { run(); }) {}

OtherWork::~OtherWork() {
  stop_ = true;
  thread_.join();
}

void OtherWork::run() {
  constexpr int64_t kFloats = 16 << 20;
  DeviceBuffer<float> memory(kFloats);
  const cuda::OwnedStream owned = cuda::OwnedStream::create();
  const auto stream = static_cast<cudaStream_t>(kernels::cuda::Stream(owned).handle);
  std::mt19937 random(1);
  while (!stop_) {
    for (int i = 0; i < 8; ++i) {
      disturb<<<1 + random() % 200, 128, 0, stream>>>(memory.get(), kFloats,
                                                      1000 * (5 + random() % 200));
    }
    kernels::cuda::check_cuda(cudaStreamSynchronize(stream), "disturb");
  }
}

}  // namespace quern::test
