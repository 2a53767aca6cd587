#include "autograd/ops/sum_target.h"

#include "autograd/ops/op_checks.h"
#include "kernels/reduce.h"
#include "tensor/visit.h"

namespace quern::detail {

// One kernel for each run of neighbouring stretched dimensions, from the right.
Tensor sum_to(const Tensor& x, const Shape& shape, DType dtype) {
  const int added = x.ndim() - shape.ndim();
  const auto stretched = [&](int i) {
    return x.shape()[i] != 1 && (i < added || shape[i - added] == 1);
  };
  Tensor y = x;
  for (int end = x.ndim(); end > 0; --end) {
    if (!stretched(end - 1)) continue;
    int begin = end - 1;
    while (begin > 0 && stretched(begin - 1)) --begin;
    kernels::ReduceShape s;
    Shape kept = y.shape();
    for (int i = 0; i < y.ndim(); ++i) {
      (i < begin ? s.outer : i < end ? s.n : s.inner) *= y.shape()[i];
      if (i >= begin && i < end) kept[i] = 1;
    }
    const Tensor out = Tensor::empty(kept, dtype, y.device(), "broadcast sum");
    const Tensor work =
        scratch(y.device(), [&](auto stream) { return sum_forward_scratch(s, stream); });
    visit_pointwise("sum", y, [&]<class T>(std::type_identity<T>, auto stream) {
      if (dtype == y.dtype()) {
        return sum_forward(out.data<T>(), y.data<T>(), s, 1.0, work.raw_data(), stream);
      }
      if constexpr (std::is_same_v<T, bfloat16>) {
        if (dtype == DType::f32)
          return sum_forward(out.data<float>(), y.data<T>(), s, 1.0, work.raw_data(), stream);
      }
      fail(cat("sum: cannot give ", dtype, " from x of ", y.dtype()));
    });
    y = out;
    end = begin + 1;
  }
  return y.reshape(shape).to(dtype);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  return sum_to(x, shape, x.dtype());
}

SumTarget::SumTarget(Gradients& g, int input, DType dtype) {
  if (!g.needs(input)) return;
  target_ = g.target(input);
  const bool direct = target_.grad.dtype() == dtype;
  QUERN_CHECK(direct || !target_.add, "gradient: cannot add ", dtype, " to a buffer of ",
              target_.grad.dtype());
  sum = direct ? target_.grad
               : Tensor::empty(target_.grad.shape(), dtype, target_.grad.device(), "gradient sum");
  add = target_.add;
}

void SumTarget::finish() {
  if (sum.defined() && !sum.shares_storage(target_.grad)) copy(target_.grad, sum);
}

}  // namespace quern::detail
