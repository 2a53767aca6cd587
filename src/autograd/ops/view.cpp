#include "autograd/ops/view.h"

#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "tensor/factory.h"

namespace quern {

// saves: nothing, like every op of this file
Variable reshape(const Variable& x, const Shape& shape) {
  return record("reshape", x.value().reshape(shape), {x},
                [from = x.shape()](Gradients& g) { g.add(0, g.strided_output().reshape(from)); });
}

Variable transpose(const Variable& x, int a, int b) {
  return record("transpose", x.value().transpose(a, b), {x},
                [a, b](Gradients& g) { g.add(0, g.strided_output().transpose(a, b)); });
}

Variable permute(const Variable& x, const std::vector<int>& dims) {
  const Tensor y = x.value().permute(dims);
  std::vector<int> inverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    inverse[static_cast<size_t>(x.shape().axis(dims[i]))] = static_cast<int>(i);
  }
  return record("permute", y, {x},
                [inverse](Gradients& g) { g.add(0, g.strided_output().permute(inverse)); });
}

Variable slice(const Variable& x, int dim, int64_t begin, int64_t end) {
  return record("slice", x.value().slice(dim, begin, end), {x},
                [dim, begin, end, shape = x.shape()](Gradients& g) {
                  const Tensor& dy = g.strided_output();
                  const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device(), "slice");
                  fill(dx, 0.0);
                  copy(dx.slice(dim, begin, end), dy);
                  g.add(0, dx);
                });
}

Variable expand(const Variable& x, const Shape& shape) {
  return record("expand", x.value().expand(shape), {x},
                [from = x.shape()](Gradients& g) { g.add(0, detail::sum_to(g.output(), from)); });
}

Variable contiguous(const Variable& x) {
  return record("contiguous", x.value().contiguous(), {x},
                [](Gradients& g) { g.add(0, g.strided_output()); });
}

}  // namespace quern
