#include "autograd/saved.h"

#include <utility>

namespace quern {

const Tensor& Recipe::value() {
  if (!value_.defined()) value_ = std::exchange(compute_, nullptr)();
  return value_;
}

detail::Fp8Tensor Recipe::fp8_transpose() const {
  return fp8_transpose_ ? fp8_transpose_() : detail::Fp8Tensor();
}

Saved::Saved(const Variable& x) : recipe_(x.recipe_) {
  if (!recipe_) value_ = x.value();
}

Tensor Saved::value() const {
  return recipe_ ? recipe_->value() : value_;
}

detail::Fp8Tensor Saved::fp8_transpose() const {
  return recipe_ ? recipe_->fp8_transpose() : detail::Fp8Tensor();
}

}  // namespace quern
