#include "tensor/factory.h"

#include "base/error.h"
#include "kernels/random.h"
#include "tensor/visit.h"

namespace quern {

Tensor full(const Shape& shape, double value, DType dtype) {
  const Tensor out = Tensor::empty(shape, dtype, "full");
  fill(out, value);
  return out;
}

Tensor zeros(const Shape& shape, DType dtype) {
  return full(shape, 0.0, dtype);
}
Tensor ones(const Shape& shape, DType dtype) {
  return full(shape, 1.0, dtype);
}

Tensor empty_like(const Tensor& x, const char* name) {
  return Tensor::empty(x.shape(), x.dtype(), x.device(), name);
}

Tensor detail::from_host(const void* values, int64_t count, const Shape& shape, DType dtype) {
  QUERN_CHECK(count == shape.numel(), "from_vector: ", count, " values given for shape ", shape);
  const Tensor out = Tensor::empty(shape, dtype, "from_vector");
  copy(out, Tensor::borrow(const_cast<void*>(values), shape, dtype, kCpu));
  return out;
}

Tensor uniform(const Shape& shape, double low, double high, DType dtype) {
  const Tensor out = Tensor::empty(shape, dtype, "uniform");
  const kernels::PhiloxKey key = Context::current().next_random(out.numel());
  visit("uniform", out, [&]<class T>(std::type_identity<T>, auto stream) {
    uniform(out.data<T>(), out.numel(), low, high, key, stream);
  });
  return out;
}

Tensor normal(const Shape& shape, double mean, double std, DType dtype) {
  const Tensor out = Tensor::empty(shape, dtype, "normal");
  const kernels::PhiloxKey key = Context::current().next_random(out.numel());
  visit("normal", out, [&]<class T>(std::type_identity<T>, auto stream) {
    normal(out.data<T>(), out.numel(), mean, std, 0.0, key, stream);
  });
  return out;
}

Tensor random_integers(const Shape& shape, int32_t bound) {
  QUERN_CHECK(bound > 0, "random_integers: bound is ", bound, ", expected at least 1");
  const Tensor out = Tensor::empty(shape, DType::i32, "random_integers");
  const kernels::PhiloxKey key = Context::current().next_random(out.numel());
  on_device(out.device(), [&](auto stream) {
    random_integers(out.data<int32_t>(), out.numel(), bound, key, stream);
  });
  return out;
}

}  // namespace quern
