// What the benchmarks share: a clock, statistics, what to do when memory runs out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

// Points in time on the current Context's device: events on its stream on a GPU, a steady clock on
// the CPU, where kernels run at the call.
class Timeline {
 public:
  // Makes its events at once, so that marking costs next to nothing. Marks beyond `marks` throw.
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

// Milliseconds of every part of `count` rounds, in order, after `warmup` rounds that are not timed.
// A round calls `mark` at the end of each of its `parts` parts.
using Mark = std::function<void()>;
std::vector<double> time_rounds(int64_t warmup, int64_t count, size_t parts,
                                const std::function<void(const Mark& mark)>& round);

// Every `parts`-th value from `index` on: the times of one part.
std::vector<double> part_of(const std::vector<double>& values, size_t parts, size_t index);
// The sums of `count` neighbours each: the times of whole rounds.
std::vector<double> sums_of(const std::vector<double>& values, size_t count);

// Of a set of measurements.
struct Summary {
  double median = 0.0, mean = 0.0, std = 0.0;  // std: of the population, as pstdev
  // Half the width of the 95 % confidence interval of the mean, by Student's t; NaN for a single
  // measurement.
  double ci95 = std::numeric_limits<double>::quiet_NaN();
};
Summary summarize(std::vector<double> values);  // at least one

// The 97.5 % quantile of Student's t distribution with this many degrees of freedom, at least 1.
double student_t_975(int64_t degrees);

// The current Context's device's.
Allocator& current_allocator();

// Releases cached memory, then calls `work`. The allocator's message when the memory does not
// suffice, else empty.
std::string out_of_memory_in(const std::function<void()>& work);

// Throws UsageError when the flag's value is below `least`.
void check_count(const char* flag, int64_t value, int64_t least = 1);

// The places in `names` of the words of "fwd,step". Throws UsageError on an unknown or missing word
// and on one named twice.
std::vector<size_t> find_choices(const char* flag, const std::string& text,
                                 const std::vector<std::string>& names);

// The same as values of an enumeration with a name_of().
template <class E>
std::vector<E> parse_choices(const char* flag, const std::string& text,
                             std::initializer_list<E> all) {
  std::vector<std::string> names;
  for (const E value : all) names.emplace_back(name_of(value));
  std::vector<E> chosen;
  for (const size_t at : find_choices(flag, text, names)) chosen.push_back(all.begin()[at]);
  return chosen;
}

double mebibytes(int64_t bytes);

// A range between cudaProfilerStart and Stop, for a profiler told to wait: `nsys
// --capture-range=cudaProfilerApi` records it alone. Nothing on the CPU.
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
