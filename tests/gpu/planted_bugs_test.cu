// Intentionally wrong kernels. compute-sanitizer must report them, or its silence about other
// kernels means nothing. Disabled; scripts/gpu_check runs them one by one under the tool that must
// complain.
#include <gtest/gtest.h>

#include "kernels/cuda/primitives/launch.cuh"

namespace quern::kernels::cuda {
namespace {

__global__ void write_past_the_end(float* x, int n) {
  x[n + threadIdx.x] = 1.0f;
}

// Each thread reads what its neighbour wrote, without a barrier between.
__global__ void read_without_barrier(float* y) {
  __shared__ float shared[64];
  shared[threadIdx.x] = static_cast<float>(threadIdx.x);
  y[threadIdx.x] = shared[63 - threadIdx.x];
}

__global__ void copy_kernel(float* y, const float* x) {
  y[threadIdx.x] = x[threadIdx.x] + 1.0f;
}

// The halves of a block wait at two barriers of one number. The hardware lets both pass; it is
// still an error, because a block's threads have to meet at one place in the code. (synccheck does
// not report a barrier that some threads never reach, once these have ended.)
__global__ void two_places_for_one_barrier(float* y) {
  if (threadIdx.x < 32) {
    y[threadIdx.x] = 0.0f;
    __syncthreads();
  } else {
    __syncthreads();
    y[threadIdx.x] = 1.0f;
  }
}

float* device_floats(int n) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, static_cast<size_t>(n) * sizeof(float)), "cudaMalloc");
  return static_cast<float*>(data);
}

TEST(DISABLED_PlantedBugs, Memcheck) {
  float* x = device_floats(128);
  launch(write_past_the_end, dim3(1), dim3(64), 0, Stream{}, x, 1 << 20);
  cudaDeviceSynchronize();
}

TEST(DISABLED_PlantedBugs, Racecheck) {
  float* y = device_floats(64);
  launch(read_without_barrier, dim3(1), dim3(64), 0, Stream{}, y);
  check_cuda(cudaDeviceSynchronize(), "read_without_barrier");
}

TEST(DISABLED_PlantedBugs, Initcheck) {
  float *x = device_floats(64), *y = device_floats(64);
  launch(copy_kernel, dim3(1), dim3(64), 0, Stream{}, y, x);
  check_cuda(cudaDeviceSynchronize(), "copy_kernel");
}

TEST(DISABLED_PlantedBugs, Synccheck) {
  float* y = device_floats(64);
  launch(two_places_for_one_barrier, dim3(1), dim3(64), 0, Stream{}, y);
  cudaDeviceSynchronize();
}

}  // namespace
}  // namespace quern::kernels::cuda
