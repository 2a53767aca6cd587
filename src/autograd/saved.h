// An input that an op saves for its backward: the value, or the recipe if the input carries one.
// With a recipe, a norm's output for example is freed after the forward. The first backward that
// needs it computes it again; the last op that drops it frees it. A backward that needs only the
// FP8 transpose may get it without the value.
#pragma once

#include <functional>
#include <memory>

#include "autograd/fp8_tensor.h"
#include "autograd/variable.h"

namespace quern {

class Recipe {
 public:
  // fp8_transpose computes the FP8 transpose of the value, as rows, without the value itself. It
  // may be empty.
  explicit Recipe(std::function<Tensor()> compute,
                  std::function<detail::Fp8Tensor()> fp8_transpose = {})
      : compute_(std::move(compute)), fp8_transpose_(std::move(fp8_transpose)) {}
  const Tensor& value();  // computed at the first call; the same bits as the original
  detail::Fp8Tensor fp8_transpose() const;  // computed at each call; undefined if there is no way

 private:
  std::function<Tensor()> compute_;
  std::function<detail::Fp8Tensor()> fp8_transpose_;
  Tensor value_;
};

class Saved {
 public:
  Saved() = default;  // for an input that the backward does not need
  explicit Saved(const Variable& x);
  Tensor value() const;
  detail::Fp8Tensor fp8_transpose() const;  // the recipe's
  bool has_recipe() const { return recipe_ != nullptr; }

 private:
  Tensor value_;
  std::shared_ptr<Recipe> recipe_;
};

}  // namespace quern
