// Element types of tensors, and the map between the enumerator and the C++ type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include "base/half.h"

namespace quern {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8, boolean };

size_t size_of(DType dtype);            // bytes per element
std::string_view name_of(DType dtype);  // "f32", "bf16", ..., "bool"
bool is_floating(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

// The dtype of a C++ type, given as a pointer.
struct DTypes {
  static constexpr DType of(const float*) { return DType::f32; }
  static constexpr DType of(const bfloat16*) { return DType::bf16; }
  static constexpr DType of(const float16*) { return DType::f16; }
  static constexpr DType of(const double*) { return DType::f64; }
  static constexpr DType of(const int32_t*) { return DType::i32; }
  static constexpr DType of(const int64_t*) { return DType::i64; }
  static constexpr DType of(const uint16_t*) { return DType::u16; }
  static constexpr DType of(const uint8_t*) { return DType::u8; }
  static constexpr DType of(const bool*) { return DType::boolean; }
};
template <class T>
inline constexpr DType dtype_of = DTypes::of(static_cast<const T*>(nullptr));

// The type of sums: double for double, float for every narrower float.
template <class T>
using acc_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace quern
