// Ways to time an op by itself. All of them cost the op's own kernels alone: inputs are leaves with
// a single use, so their gradients are handles to what the op wrote and nothing is added up.
#pragma once

#include <functional>
#include <vector>

#include "autograd/variable.h"
#include "bench/kernel_cases.h"

namespace quern {

using Inputs = std::vector<Variable>;
using MakeInputs = std::function<Inputs()>;
using Op = std::function<Variable(const Inputs&)>;

KernelVariant forward(const char* name, const MakeInputs& make, const Op& op);  // without a tape
// A recorded forward before each call; its time is not counted.
KernelVariant backward(const char* name, const MakeInputs& make, const Op& op);
KernelVariant forward_backward(const char* name, const MakeInputs& make, const Op& loss);

}  // namespace quern
