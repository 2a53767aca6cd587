// Shared by the benchmarks: a clock, statistics, the handling of out of memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

// Points in time on the current Context's device: events on a GPU's stream. On the CPU, where
// kernels run synchronously, a steady clock.
class Timeline {
 public:
  // Creates its events up front, so that mark() is cheap. Marks beyond `marks` throw.
  explicit Timeline(size_t marks);

  void mark();
  // Milliseconds between neighbouring marks; waits for the last one.
  std::vector<double> intervals() const;

 private:
  size_t capacity_;
  size_t marked_ = 0;
  cuda::Stream stream_;
  std::vector<cuda::Event> events_;  // on a GPU
  std::vector<std::chrono::steady_clock::time_point> points_;
};

// Runs `warmup` untimed rounds, then `count` timed ones. A round calls `mark` at the end of each of
// its `parts` parts. Returns the milliseconds of every part, in order.
using Mark = std::function<void()>;
std::vector<double> time_rounds(int64_t warmup, int64_t count, size_t parts,
                                const std::function<void(const Mark& mark)>& round);

// Every `parts`-th value from `index` on: the times of one part.
std::vector<double> part_of(const std::vector<double>& values, size_t parts, size_t index);
// The sums of `count` consecutive values each: the times of whole rounds.
std::vector<double> sums_of(const std::vector<double>& values, size_t count);

// Statistics of a set of measurements.
struct Summary {
  double median = 0.0, mean = 0.0, std = 0.0;  // std: of the population, like pstdev
  // Half the width of the 95 % confidence interval of the mean, by Student's t; NaN for a single
  // measurement.
  double ci95 = std::numeric_limits<double>::quiet_NaN();
};
Summary summarize(const std::vector<double>& values);  // at least one

// The 97.5 % quantile of Student's t distribution with this many degrees of freedom, at least 1.
double student_t_975(int64_t degrees);

// The allocator of the current Context's device.
Allocator& current_allocator();

// Releases cached memory, then calls `work`. Returns the allocator's message if memory runs out,
// else "".
std::string out_of_memory_in(const std::function<void()>& work);

// A range between cudaProfilerStart and Stop: `nsys --capture-range=cudaProfilerApi` records only
// it. Does nothing on the CPU.
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
