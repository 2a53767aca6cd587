#include "autograd/variable.h"

#include <utility>

#include "autograd/saved.h"
#include "base/error.h"

namespace quern {

Variable Variable::leaf(Tensor value, std::string name) {
  auto store = std::make_shared<Leaf>();
  store->name = std::move(name);
  return leaf(std::move(value), std::move(store));
}

Variable Variable::leaf(Tensor value, std::shared_ptr<Leaf> store) {
  QUERN_CHECK(is_floating(value.dtype()), "leaf ", store->name, ": dtype is ", value.dtype(),
              ", only floats have gradients");
  Variable variable(std::move(value));
  variable.leaf_ = std::move(store);
  return variable;
}

const Tensor& Variable::grad() const {
  QUERN_CHECK(leaf_, "grad: only a leaf keeps its gradient; make one with Variable::leaf");
  QUERN_CHECK(leaf_->grad.defined(), "grad: ", leaf_->name, " has none; no backward() reached it");
  return leaf_->grad;
}

Variable Variable::with_recipe(std::shared_ptr<Recipe> recipe) const {
  Variable x = *this;
  x.recipe_ = std::move(recipe);
  return x;
}

Variable Variable::without_recipe() const {
  Variable x = *this;
  x.recipe_ = nullptr;
  return x;
}

}  // namespace quern
