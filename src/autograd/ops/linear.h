#pragma once

#include <functional>

#include "autograd/variable.h"

namespace quern {

// x w^T: x (..., in), w (out, in) -> (..., out). All of one dtype.
Variable linear(const Variable& x, const Variable& w);
// x w^T + b: b (out). The product may also be rounded to x's type before b is added.
Variable linear(const Variable& x, const Variable& w, const Variable& b);

// The output of an MLP's activation, which the next weight's gradient needs: computed again in the
// backward, or kept. See gelu_linear and swiglu_linear.
enum class ActivationOutput { rebuilt, kept };

namespace detail {
// linear(x, w) with its product computed by product(y, x, w) on matrices y (N, out), x (N, in).
using LinearProduct = std::function<void(const Tensor& y, const Tensor& x, const Tensor& w)>;
Variable linear_by(const Variable& x, const Variable& w, const LinearProduct& product);
}  // namespace detail

}  // namespace quern
