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

Variable Variable::with_recipe(std::function<Tensor()> compute) const {
  Variable x = *this;
  x.recipe_ = std::make_shared<Recipe>(std::move(compute));
  return x;
}

Variable Variable::without_recipe() const {
  Variable x = *this;
  x.recipe_ = nullptr;
  return x;
}

}  // namespace quern
