#include "autograd/ops/dropout.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "kernels/dropout.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

using kernels::DropoutDraw;

constexpr int64_t kDrawBytes = sizeof(DropoutDraw);

DropoutDraw* data_of(const Tensor& draw) {
  return static_cast<DropoutDraw*>(draw.raw_data());
}

void check_arguments(const char* op, const Tensor& x, double p, const Tensor& draw) {
  detail::check_floating(op, "x", x);
  QUERN_CHECK(p >= 0.0 && p < 1.0, op, ": p is ", p, ", expected 0 <= p < 1");
  if (p == 0.0) return;
  detail::check_dtype(op, "draw", draw, DType::u8);
  detail::check_shape(op, "draw", draw, {kDrawBytes});
  detail::check_device(op, "draw", draw, x.device());
}

Tensor drop(const Tensor& x, double p, const Tensor& draw, uint32_t site) {
  const Tensor y = empty_like(x, "dropout");
  visit("dropout", x, [&]<class T>(std::type_identity<T>, auto stream) {
    dropout(y.data<T>(), x.data<T>(), x.numel(), p, site, data_of(draw), stream);
  });
  return y;
}

}  // namespace

Tensor make_draws(uint64_t seed, uint64_t number, uint64_t stride) {
  DropoutDraw first{seed, number, stride};
  const Tensor source =
      Tensor::empty({kDrawBytes}, DType::u8, Context::current().device(), "dropout draws");
  copy(source, Tensor::borrow(&first, {kDrawBytes}, DType::u8, kCpu));
  return source;
}

Tensor next_draw(const Tensor& source) {
  const Tensor draw = empty_like(source, "dropout draw");
  on_device(source.device(),
            [&](auto stream) { next_draw(data_of(draw), data_of(source), stream); });
  return draw;
}

// saves: the draw
Variable dropout(const Variable& x, double p, const Tensor& draw, uint32_t site) {
  const RangeScope range("dropout");
  check_arguments("dropout", x.value(), p, draw);
  if (p == 0.0) return x;
  return record("dropout", drop(x.value().contiguous(), p, draw, site), {x},
                [p, draw, site](Gradients& g) { g.add(0, drop(g.output(), p, draw, site)); });
}

Variable naive_dropout(const Variable& x, double p, const Tensor& draw, uint32_t site) {
  const RangeScope range("naive_dropout");
  check_arguments("naive_dropout", x.value(), p, draw);
  if (p == 0.0) return x;
  const Tensor ones = empty_like(x.value(), "naive_dropout");
  fill(ones, 1.0);
  const Tensor kept = drop(ones, p, draw, site).to(DType::boolean).to(x.dtype());
  return scale(mul(x, kept), kernels::dropout_scale(p));
}

}  // namespace quern
