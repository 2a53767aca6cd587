// An input that an op saves for its backward: the value, or the recipe if the input carries one.
// With a recipe, a norm's output for example is freed after the forward. The first backward that
// needs it computes it again; the last op that drops it frees it.
#pragma once

#include <functional>
#include <memory>

#include "autograd/variable.h"

namespace quern {

class Recipe {
 public:
  explicit Recipe(std::function<Tensor()> compute) : compute_(std::move(compute)) {}
  const Tensor& value();  // computed at the first call; the same bits as the original

 private:
  std::function<Tensor()> compute_;
  Tensor value_;
};

class Saved {
 public:
  Saved() = default;  // for an input that the backward does not need
  explicit Saved(const Variable& x);
  Tensor value() const;
  bool has_recipe() const { return recipe_ != nullptr; }

 private:
  Tensor value_;
  std::shared_ptr<Recipe> recipe_;
};

}  // namespace quern
