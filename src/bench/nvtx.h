// Named ranges for NVIDIA's profilers (Nsight Systems and Compute).
#pragma once

#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

// While it lives, the current Context's ranges are shown by an attached profiler.
class NvtxRanges : public RangeObserver {
 public:
  NvtxRanges() : context_(Context::current()), previous_(context_.range_observer) {
    if (context_.device().is_cuda()) context_.range_observer = this;
  }
  ~NvtxRanges() override { context_.range_observer = previous_; }
  NvtxRanges(const NvtxRanges&) = delete;
  NvtxRanges& operator=(const NvtxRanges&) = delete;

  void on_begin(const char* name) override { cuda::push_range(name); }
  void on_end() override { cuda::pop_range(); }

 private:
  Context& context_;
  RangeObserver* previous_;
};

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
