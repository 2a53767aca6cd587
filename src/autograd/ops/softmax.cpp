#include "autograd/ops/softmax.h"

#include "autograd/ops/op_checks.h"
#include "autograd/ops/view.h"
#include "kernels/softmax.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// saves: y
Variable softmax_rows(const char* op, const Variable& input, bool log) {
  const Tensor x = input.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), cols = x.dim(-1);
  const Tensor y = empty_like(x, op);
  visit(op, x, [&]<class T>(std::type_identity<T>, auto stream) {
    softmax_forward(y.data<T>(), x.data<T>(), rows, cols, log, stream);
  });
  return record(op, y, {input}, [op, y, rows, cols, log](Gradients& g) {
    const Tensor& dy = g.output();
    const Tensor dx = empty_like(y, op);
    visit(op, y, [&]<class T>(std::type_identity<T>, auto stream) {
      softmax_backward(dx.data<T>(), y.data<T>(), dy.data<T>(), rows, cols, log, stream);
    });
    g.add(0, dx);
  });
}

// The kernels work along the last dimension; another one is transposed there and back.
Variable along(const char* op, const Variable& x, int dim, bool log) {
  const RangeScope range(op);
  detail::check_floating(op, "x", x.value());
  const int axis = x.shape().axis(dim);
  if (axis == x.shape().ndim() - 1) return softmax_rows(op, x, log);
  return transpose(softmax_rows(op, transpose(x, axis, -1), log), axis, -1);
}

}  // namespace

Variable softmax(const Variable& x, int dim) {
  return along("softmax", x, dim, false);
}
Variable log_softmax(const Variable& x, int dim) {
  return along("log_softmax", x, dim, true);
}

}  // namespace quern
