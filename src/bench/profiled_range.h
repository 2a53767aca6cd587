// What a profiler told to wait (NVIDIA's Nsight Systems and Compute) is shown.
#pragma once

#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

// A range between cudaProfilerStart and Stop: `nsys --capture-range=cudaProfilerApi` records it
// alone. Nothing on the CPU.
class ProfiledRange {
 public:
  explicit ProfiledRange(const char* name) : on_gpu_(Context::current().device().is_cuda()) {
    if (!on_gpu_) return;
    cuda::start_profiler();
    cuda::push_range(name);
  }
  ~ProfiledRange() {
    if (!on_gpu_) return;
    cuda::pop_range();
    cuda::stop_profiler();
  }
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;

 private:
  bool on_gpu_;
};

}  // namespace quern
