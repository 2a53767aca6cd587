// Muon's naive twin: one matrix after another by small ops, with the scalars on the host.
#include <algorithm>
#include <cmath>

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "base/round_up.h"
#include "optim/muon.h"
#include "tensor/factory.h"

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

void Muon::naive_update(const Tensor& values, double clip, const kernels::StepState& now) {
  const NoGrad no_grad;
  moments_.naive_update(values, clip, now);
  const double mu = options_.momentum;
  const ArenaLayout& layout = arena().layout();
  for (const Matrix& one : matrices_) {
    const int64_t begin = one.slice.begin, end = begin + one.slice.shape.numel();
    const Tensor directions = zeros({end - begin});
    // The matrix, or what this rank has of it.
    layout.values.for_each_part(begin, end, [&](int64_t from, int64_t to, int64_t) {
      const auto part_of = [&](const Tensor& buffer, int64_t place) {
        return buffer.slice(0, place, place + to - from);
      };
      const Tensor momentum = part_of(momentum_, layout_.places.of(from));
      const Variable gradient = scale(part_of(arena().sums(), layout.sums.of(from)), clip);
      copy(momentum, add(scale(momentum, mu), scale(gradient, 1.0 - mu)).value());
      const Variable direction =
          options_.nesterov ? add(scale(gradient, 1.0 - mu), scale(momentum, mu)) : momentum;
      copy(part_of(directions, from - begin), direction.value());
    });
    if (ranks() > 0) complete(directions, begin);
    const Variable rounded = cast(directions.reshape(one.slice.shape), DType::bf16);
    const Variable wide = cast(rounded, DType::f32);
    const double norm = std::sqrt(sum(mul(wide, wide)).value().item());
    const Variable x = cast(scale(wide, 1.0 / std::max(norm, options_.eps)), DType::bf16);
    const Tensor change =
        cast(naive_orthogonalize(x.value(), options_.iteration), DType::f32).value();
    const double lr = now.lr * one.lr_scale;
    layout.values.for_each_part(begin, end, [&](int64_t from, int64_t to, int64_t place) {
      const Tensor param = values.slice(0, place, place + to - from);
      const Tensor part = change.reshape({end - begin}).slice(0, from - begin, to - begin);
      copy(param, add(scale(param, 1.0 - lr * one.decay), scale(part, -lr * one.adjust)).value());
    });
  }
}

// Gets the other ranks' parts of a matrix that begins there in the arena.
void Muon::complete(const Tensor& direction, int64_t begin) const {
  const int64_t numel = direction.numel(), each = round_up(numel, int64_t{64});
  const Tensor sent = zeros({ranks() * each}), received = zeros({ranks() * each});
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    copy(sent.slice(0, rank * each, rank * each + numel), direction);
  }
  exchange_(received.data<float>(), sent.data<float>(), each, "the hidden matrices");
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    const Tensor all = received.slice(0, rank * each, rank * each + numel);
    arena().layout().shares[static_cast<size_t>(rank)].for_each_part(
        begin, begin + numel, [&](int64_t from, int64_t to, int64_t) {
          copy(direction.slice(0, from - begin, to - begin),
               all.slice(0, from - begin, to - begin));
        });
  }
}

}  // namespace quern
