// A precision, seen by matrix products: the dtype of the operands and the math mode for FP32
// operands.
#pragma once

#include "base/enum_names.h"
#include "nn/options.h"
#include "tensor/context.h"

namespace quern {

template <>
inline constexpr std::array kNamesOf<Precision>{"fp32", "tf32", "bf16", "fp8"};

inline DType operand_type(Precision precision) {
  return has_bf16_activations(precision) ? DType::bf16 : DType::f32;
}

// Sets the math of FP32 operands on the current Context during its lifetime.
class MatmulMathScope : ScopedValue<Precision> {
 public:
  explicit MatmulMathScope(Precision precision)
      : ScopedValue(Context::current().options.precision, precision) {}
};

}  // namespace quern
