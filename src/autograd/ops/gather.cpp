#include "autograd/ops/gather.h"

#include "autograd/ops/op_checks.h"
#include "kernels/gather.h"
#include "tensor/visit.h"

namespace quern {

// saves: the index
Variable gather(const Variable& input, int dim, const Tensor& index_in) {
  const RangeScope range("gather");
  detail::check_floating("gather", "x", input.value());
  const Tensor x = input.value().contiguous();
  const Tensor index = detail::as_integers("gather", "index", index_in, DType::i64, x.device());
  const int axis = x.shape().axis(dim);
  Shape shape = x.shape();
  if (index.ndim() == shape.ndim()) shape[axis] = index.shape()[axis];
  detail::check_shape("gather", "index", index, shape);
  kernels::GatherShape s{.n = x.shape()[axis], .m = shape[axis]};
  for (int i = 0; i < x.ndim(); ++i) {
    if (i != axis) (i < axis ? s.outer : s.inner) *= shape[i];
  }
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device(), "gather");
  visit_pointwise("gather", x, [&]<class T>(std::type_identity<T>, auto stream) {
    gather_forward(y.data<T>(), x.data<T>(), index.data<int64_t>(), s, stream);
  });

  return record("gather", y, {input}, [index, s, from = x.shape()](Gradients& g) {
    const Tensor& dy = g.output();
    const Tensor dx = Tensor::empty(from, dy.dtype(), dy.device(), "gather");
    visit_pointwise("gather", dy, [&]<class T>(std::type_identity<T>, auto stream) {
      gather_backward(dx.data<T>(), dy.data<T>(), index.data<int64_t>(), s, stream);
    });
    g.add(0, dx);
  });
}

}  // namespace quern
