// The naive twin of AdamW: small ops over the whole arena, with the scalars on the host. The
// reference of the fused update in tests and benchmarks.

#include <cmath>

#include "autograd/ops/binary.h"
#include "autograd/ops/pointwise.h"
#include "autograd/tape.h"
#include "kernels/binary.h"
#include "optim/adamw.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// y = f(y, x); contiguous, one dimension.
void update(const Tensor& y, const Tensor& x, const kernels::BinaryOp& f) {
  kernels::BinaryLayout layout;
  layout.ndim = 1;
  layout.shape[0] = y.numel();
  layout.a_strides[0] = layout.b_strides[0] = 1;
  on_device(y.device(), [&](auto stream) {
    float* const data = y.data<float>();
    binary_forward(data, data, x.data<float>(), layout, f, stream);
  });
}

}  // namespace

// Padding between the ranges is zero in all inputs, and its change is 0 / eps. BF16 moments are
// widened before the ops and rounded after them.
void naive_adamw(const AdamWTensors& tensors, std::span<const kernels::AdamWRange> ranges,
                 const AdamWOptions& options, double clip, const kernels::StepState& state) {
  const NoGrad no_grad;
  const auto& [param, first, second, grad] = tensors;
  const Tensor m = first.to(DType::f32), v = second.to(DType::f32);
  const double beta1 = options.beta1, beta2 = options.beta2, t = static_cast<double>(state.step);
  const double correction1 = 1.0 - std::pow(beta1, t), correction2 = 1.0 - std::pow(beta2, t);

  update(m, grad, kernels::Axpby{beta1, (1.0 - beta1) * clip});
  update(v, grad, kernels::AxpbySquare{beta2, (1.0 - beta2) * clip * clip});
  const Variable denominator = scale(sqrt(v), 1.0 / std::sqrt(correction2), options.eps);
  const Tensor change = div(m, denominator).value();
  for (const kernels::AdamWRange& range : ranges) {
    const double lr = state.lr * range.lr_scale;
    const int64_t begin = range.begin, end = begin + range.count;
    update(param.slice(0, begin, end), change.slice(0, begin, end),
           kernels::Axpby{1.0 - lr * range.decay, -lr / correction1});
  }
  if (first.dtype() == DType::f32) return;
  on_device(m.device(), [&](auto stream) {
    for (const kernels::AdamWRange& range : ranges) {
      const int64_t i = range.begin;
      round_moments(first.data<bfloat16>() + i, second.data<bfloat16>() + i, m.data<float>() + i,
                    v.data<float>() + i, range.count, i + range.arena_shift, options.seed,
                    state.step, stream);
    }
  });
}

}  // namespace quern
