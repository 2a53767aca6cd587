#include "autograd/ops/split.h"

#include "autograd/ops/op_checks.h"

namespace quern {

// saves: nothing
std::vector<Variable> split(const Variable& x, const std::vector<int64_t>& sizes, int dim) {
  const RangeScope range("split");
  const int axis = x.shape().axis(dim);
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  QUERN_CHECK(total == x.shape()[axis], "split: the sizes add up to ", total, ", expected the ",
              x.shape()[axis], " of dimension ", axis);
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(x.value().slice(axis, begin, begin + size));
    begin += size;
  }
  return record(
      "split", std::move(parts), {x},
      [axis, sizes, shape = x.shape(), dtype = x.dtype(), device = x.device()](Gradients& g) {
        const Tensor dx = Tensor::empty(shape, dtype, device, "split");
        const int count = static_cast<int>(sizes.size());
        bool complete = true;  // an unused part has gradient 0
        for (int i = 0; i < count; ++i) complete = complete && g.strided_output(i).defined();
        if (!complete) fill(dx, 0.0);
        int64_t begin = 0;
        for (int i = 0; i < count; ++i) {
          const int64_t end = begin + sizes[static_cast<size_t>(i)];
          const Tensor& part = g.strided_output(i);
          if (part.defined()) copy(dx.slice(axis, begin, end), part);
          begin = end;
        }
        g.add(0, dx);
      });
}

}  // namespace quern
