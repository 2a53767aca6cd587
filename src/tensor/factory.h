// Tensors with known contents, on the current Context's device or on that of `x`.
#pragma once

#include <vector>

#include "tensor/context.h"
#include "tensor/tensor.h"

namespace quern {

Tensor full(const Shape& shape, double value, DType dtype = DType::f32);
Tensor zeros(const Shape& shape, DType dtype = DType::f32);
Tensor ones(const Shape& shape, DType dtype = DType::f32);
Tensor empty_like(const Tensor& x, const char* name = "tensor");  // contiguous

namespace detail {
Tensor from_host(const void* values, int64_t count, const Shape& shape, DType dtype);
}

// Row-major values, copied to the current Context's device.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape) {
  return detail::from_host(values.data(), static_cast<int64_t>(values.size()), shape, dtype_of<T>);
}

// A table for kernels, copied to the current Context's device; u8.
template <class T>
Tensor upload_table(const std::vector<T>& rows, MemoryTag tag) {
  const auto bytes = static_cast<int64_t>(rows.size() * sizeof(T));
  const Tensor table = Tensor::empty({bytes}, DType::u8, tag);
  copy(table, Tensor::borrow(const_cast<T*>(rows.data()), {bytes}, DType::u8, kCpu));
  return table;
}

// Drawn from the current Context's generator. f32, bf16, and on the CPU f64.
Tensor uniform(const Shape& shape, double low, double high, DType dtype = DType::f32);
Tensor normal(const Shape& shape, double mean, double std, DType dtype = DType::f32);
Tensor random_integers(const Shape& shape, int32_t bound);  // i32 in [0, bound)

}  // namespace quern
