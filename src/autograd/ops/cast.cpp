#include "autograd/ops/cast.h"

#include "autograd/ops/op_checks.h"

namespace quern {

// saves: nothing
Variable cast(const Variable& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const RangeScope range("cast");
  detail::check_floating("cast", "x", x.value());
  QUERN_CHECK(is_floating(dtype), "cast: dtype is ", dtype, ", expected a float");
  return record("cast", x.value().to(dtype), {x},
                [from = x.dtype()](Gradients& g) { g.add(0, g.output().to(from)); });
}

}  // namespace quern
