// Points in time on the current Context's device: events on its stream on a GPU, a steady clock on
// the CPU, where kernels run at the call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tensor/cuda_runtime.h"

namespace quern {

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

}  // namespace quern
