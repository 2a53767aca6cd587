#include "autograd/ops/concat.h"

#include "autograd/ops/op_checks.h"

namespace quern {

// saves: nothing
Variable concat(const std::vector<Variable>& parts, int dim) {
  const RangeScope range("concat");
  QUERN_CHECK(!parts.empty(), "concat: no parts given");
  const Tensor& first = parts[0].value();
  detail::check_floating("concat", "the first part", first);
  Shape shape = first.shape();
  const int axis = shape.axis(dim);
  shape[axis] = 0;
  std::vector<int64_t> ends;
  for (const Variable& part : parts) {
    detail::check_like("concat", "a part", part.value(), first.dtype(), first.device());
    Shape expected = first.shape();
    if (part.shape().ndim() == expected.ndim()) expected[axis] = part.shape()[axis];
    detail::check_shape("concat", "a part", part.value(), expected);
    shape[axis] += part.shape()[axis];
    ends.push_back(shape[axis]);
  }
  const Tensor y = Tensor::empty(shape, first.dtype(), first.device(), "concat");
  for (size_t i = 0; i < parts.size(); ++i) {
    copy(y.slice(axis, i ? ends[i - 1] : 0, ends[i]), parts[i].value());
  }
  return record("concat", y, parts, [axis, ends](Gradients& g) {
    for (size_t i = 0; i < ends.size(); ++i) {
      const Tensor part = g.strided_output().slice(axis, i ? ends[i - 1] : 0, ends[i]);
      g.add(static_cast<int>(i), part);
    }
  });
}

}  // namespace quern
