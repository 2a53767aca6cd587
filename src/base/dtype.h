// Element types of tensors, and the map between the enumerator and the C++ type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "base/half.h"

namespace quern {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8, boolean };

size_t size_of(DType dtype);            // bytes per element
std::string_view name_of(DType dtype);  // "f32", "bf16", ..., "bool"
bool is_floating(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

template <class T>
struct dtype_of_type;
template <>
struct dtype_of_type<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of_type<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of_type<float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of_type<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of_type<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of_type<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of_type<uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct dtype_of_type<uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of_type<bool> {
  static constexpr DType value = DType::boolean;
};

template <class T>
inline constexpr DType dtype_of = dtype_of_type<T>::value;

// The type of sums: double for double, float for every narrower float.
template <class T>
struct accumulator {
  using type = float;
};
template <>
struct accumulator<double> {
  using type = double;
};
template <class T>
using acc_t = typename accumulator<T>::type;

}  // namespace quern
