#include "autograd/ops/softmax.h"

#include "autograd/ops/op_checks.h"
#include "autograd/ops/view.h"
#include "kernels/softmax.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// saves: y
Variable softmax_rows(const Variable& input) {
  const Tensor x = input.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), cols = x.dim(-1);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), "softmax");
  visit("softmax", x, [&]<class T>(std::type_identity<T>, auto stream) {
    softmax_forward(y.data<T>(), x.data<T>(), rows, cols, stream);
  });
  return record("softmax", y, {input}, [y, rows, cols](Gradients& g) {
    const Tensor dx = Tensor::empty(y.shape(), y.dtype(), y.device(), "softmax");
    visit("softmax", y, [&]<class T>(std::type_identity<T>, auto stream) {
      softmax_backward(dx.data<T>(), y.data<T>(), g.output().data<T>(), rows, cols, stream);
    });
    g.add(0, dx);
  });
}

// saves: y
Variable log_softmax_rows(const Variable& input) {
  const Tensor x = input.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), cols = x.dim(-1);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), "log_softmax");
  visit("log_softmax", x, [&]<class T>(std::type_identity<T>, auto stream) {
    log_softmax_forward(y.data<T>(), x.data<T>(), rows, cols, stream);
  });
  return record("log_softmax", y, {input}, [y, rows, cols](Gradients& g) {
    const Tensor dx = Tensor::empty(y.shape(), y.dtype(), y.device(), "log_softmax");
    visit("log_softmax", y, [&]<class T>(std::type_identity<T>, auto stream) {
      log_softmax_backward(dx.data<T>(), y.data<T>(), g.output().data<T>(), rows, cols, stream);
    });
    g.add(0, dx);
  });
}

// The kernels work along the last dimension; another one is transposed there and back.
template <class Rows>
Variable along(const char* op, const Variable& x, int dim, Rows&& rows) {
  const RangeScope range(op);
  detail::check_floating(op, "x", x.value());
  const int axis = x.shape().axis(dim);
  if (axis == x.shape().ndim() - 1) return rows(x);
  return transpose(rows(transpose(x, axis, -1)), axis, -1);
}

}  // namespace

Variable softmax(const Variable& x, int dim) {
  return along("softmax", x, dim, softmax_rows);
}
Variable log_softmax(const Variable& x, int dim) {
  return along("log_softmax", x, dim, log_softmax_rows);
}

}  // namespace quern
