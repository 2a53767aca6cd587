#include "autograd/ops/mask.h"

#include "autograd/ops/op_checks.h"
#include "kernels/mask.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// y = mask ? value : x. x has any strides, mask broadcasts to it.
Tensor fill_masked(const Tensor& x, const Tensor& mask, double value) {
  const Tensor wide = mask.expand(x.shape());
  kernels::BinaryLayout layout;
  layout.ndim = x.ndim();
  for (int i = 0; i < x.ndim(); ++i) {
    layout.shape[i] = x.shape()[i];
    layout.a_strides[i] = x.strides()[i];
    layout.b_strides[i] = wide.strides()[i];
  }
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), "masked_fill");
  const auto* bytes = static_cast<const uint8_t*>(mask.raw_data());
  visit_pointwise("masked_fill", x, [&]<class T>(std::type_identity<T>, auto stream) {
    masked_fill(y.data<T>(), x.data<T>(), bytes, value, layout, stream);
  });
  return y;
}

// In place if x is the sole owner of its memory.
Tensor fill_future(const Tensor& x, double value) {
  Tensor y = x.is_sole_owner() ? x : Tensor::empty(x.shape(), x.dtype(), x.device(), "causal_mask");
  const int64_t batch = detail::count_leading(x.shape(), 2);
  visit_pointwise("causal_mask", x, [&]<class T>(std::type_identity<T>, auto stream) {
    causal_mask(y.data<T>(), x.data<T>(), batch, x.dim(-2), x.dim(-1), value, stream);
  });
  return y;
}

}  // namespace

// saves: the mask
Variable masked_fill(const Variable& x, const Tensor& mask, double value) {
  const RangeScope range("masked_fill");
  detail::check_floating("masked_fill", "x", x.value());
  detail::check_device("masked_fill", "mask", mask, x.device());
  QUERN_CHECK(mask.dtype() == DType::boolean || mask.dtype() == DType::u8,
              "masked_fill: mask has dtype ", mask.dtype(), ", expected bool or u8");
  QUERN_CHECK(broadcast_shapes(x.shape(), mask.shape(), "masked_fill") == x.shape(),
              "masked_fill: mask has shape ", mask.shape(),
              ", expected one that broadcasts to x's ", x.shape());
  return record("masked_fill", fill_masked(x.value(), mask, value), {x},
                [mask](Gradients& g) { g.add(0, fill_masked(g.output(), mask, 0.0)); });
}

// saves: nothing
Variable causal_mask(const Variable& x, double value) {
  const RangeScope range("causal_mask");
  detail::check_floating("causal_mask", "x", x.value());
  detail::check_ndim("causal_mask", "x", x.value(), 2);
  return record("causal_mask", fill_future(x.value().contiguous(), value), {x},
                [](Gradients& g) { g.add(0, fill_future(g.output(), 0.0)); });
}

}  // namespace quern
