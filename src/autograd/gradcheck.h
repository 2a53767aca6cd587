// Compares the gradients that ops compute with central differences, in double on the CPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/tape.h"

namespace quern {

struct GradcheckOptions {
  double eps = 1e-6;   // half the step of the difference
  double atol = 1e-5;  // |analytic - numeric| <= atol + rtol |numeric|
  double rtol = 1e-3;
};

struct GradcheckResult {
  bool ok = true;
  double max_error = 0.0;  // largest |analytic - numeric|
  std::string message;     // the first element that failed: input, index, both values
  explicit operator bool() const { return ok; }
};

// fn maps the inputs (f64, any strides; all are leaves) to one Variable of any shape, which is
// contracted with fixed pseudo-random numbers. Every element of every input is checked. Throws when
// an input is not f64 on the CPU.
GradcheckResult gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace quern
