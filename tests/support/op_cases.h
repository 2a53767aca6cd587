// One table of cases for all differentiable ops. It drives the gradient check and the comparisons
// of devices and dtypes. A case has inputs in double on the CPU; `fn` runs on any dtype and device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/tape.h"

namespace quern::testing_support {

struct OpCase {
  std::string op;     // the function's name as its header declares it
  std::string label;  // the distinguishing feature of this case
  std::vector<Tensor> inputs;
  std::function<Variable(const std::vector<Variable>&)> fn;
  // Inputs that stay f32 when the others are bf16: weights of norms.
  std::vector<size_t> wide;
};

std::vector<OpCase> op_cases();

// The parts of the table.
std::vector<OpCase> elementwise_cases();  // pointwise, binary, reduce, cast
std::vector<OpCase> shape_cases();        // view, concat, split, mask, gather, embedding
std::vector<OpCase> matrix_cases();       // matmul, linear, weighted_sum, losses
std::vector<OpCase> model_cases();        // softmax, norms, rope, swiglu, attention

// Runs a case on the current Context's device. Returns the output and the gradient of every input,
// in double. The inputs are rounded to bf16 first, so that all dtypes see the same numbers.
std::vector<std::vector<double>> run_case(const OpCase& op_case, DType dtype);

// Norm of the difference.
double distance(const std::vector<double>& a, const std::vector<double>& b);
double norm(const std::vector<double>& x);

// Reproducible, distinct f64 values in [low, high) on the CPU; `seed` varies them between inputs.
Tensor values(const Shape& shape, int seed, double low = -1.0, double high = 1.0);
// The same with strides as a transpose (last two dimensions) leaves them.
Tensor strided_values(const Shape& shape, int seed, double low = -1.0, double high = 1.0);
// Concatenates the flattened parts: a single output for ops that have several.
Variable join(const std::vector<Variable>& parts);

}  // namespace quern::testing_support
