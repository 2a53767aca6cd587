// Muon's naive twin: one matrix after another by small ops, with the scalars on the host.
#include <algorithm>
#include <cmath>

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "optim/muon.h"

namespace quern {

Tensor naive_orthogonalize(const Tensor& x_in, const NewtonSchulz& options) {
  const NoGrad no_grad;
  const bool wide = x_in.dim(0) <= x_in.dim(1);
  Variable x = x_in;
  for (int i = 0; i < options.iterations; ++i) {
    const Variable gram = matmul(x, x, !wide, wide);
    const Variable p = add(scale(gram, options.b), scale(matmul(gram, gram), options.c));
    x = add(scale(x, options.a), wide ? matmul(p, x) : matmul(x, p));
  }
  return x.value();
}

void Muon::naive_update(double clip, const kernels::StepState& now) {
  const NoGrad no_grad;
  moments_.naive_update(clip, now);
  const double mu = options_.momentum;
  for (const Group& group : groups_) {
    const Shape shape{group.rows, group.cols};
    for (int64_t i = 0; i < group.count(); ++i) {
      const kernels::MuonMatrix& one = group.matrices[static_cast<size_t>(i)];
      const auto matrix_of = [&](const Tensor& buffer, int64_t begin) {
        return buffer.slice(0, begin, begin + shape.numel()).reshape(shape);
      };
      const Tensor param = matrix_of(arena().values(), one.begin);
      const Tensor momentum = matrix_of(momentum_, group.first + i * group.stride);
      const Variable gradient = scale(matrix_of(arena().grads(), one.begin), clip);
      copy(momentum, add(scale(momentum, mu), scale(gradient, 1.0 - mu)).value());
      const Variable direction =
          options_.nesterov ? add(scale(gradient, 1.0 - mu), scale(momentum, mu)) : momentum;
      const Variable rounded = cast(direction, DType::bf16);
      const Variable wide = cast(rounded, DType::f32);
      const double norm = std::sqrt(sum(mul(wide, wide)).value().item());
      const Variable x = cast(scale(wide, 1.0 / std::max(norm, options_.eps)), DType::bf16);
      const Variable change = cast(naive_orthogonalize(x.value(), options_.iteration), DType::f32);
      const double lr = now.lr * one.lr_scale;
      copy(param, add(scale(param, 1.0 - lr * one.decay), scale(change, -lr * one.adjust)).value());
    }
  }
}

}  // namespace quern
