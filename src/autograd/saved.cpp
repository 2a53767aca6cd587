#include "autograd/saved.h"

#include <utility>

namespace quern {

const Tensor& Recipe::value() {
  if (!value_.defined()) value_ = std::exchange(compute_, nullptr)();
  return value_;
}

Saved::Saved(const Variable& x) : recipe_(x.recipe_) {
  if (!recipe_) value_ = x.value();
}

Tensor Saved::value() const {
  return recipe_ ? recipe_->value() : value_;
}

}  // namespace quern
