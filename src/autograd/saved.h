// What an op saves of an input for its backward: the value, or the recipe that the input carries.
// So a norm's output, say, is freed when the forward is done with it and computed again, once, when
// the first backward asks for it; the last one to drop it frees it.
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
  Saved() = default;  // of an input that the backward does not need
  explicit Saved(const Variable& x);
  Tensor value() const;

 private:
  Tensor value_;
  std::shared_ptr<Recipe> recipe_;
};

}  // namespace quern
