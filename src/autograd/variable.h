// Variable: a Tensor that may remember how it was made. Ops take Variables and return Variables; a
// Tensor converts implicitly to one that needs no gradient. Copying a Variable copies handles.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace quern {

class Node;
class Recipe;

// The gradient store of a leaf: of a Variable made by the user, or of a parameter.
struct Leaf {
  std::string name;
  Tensor grad;              // undefined until the first gradient, unless a buffer was given
  bool has_buffer = false;  // `grad` is fixed memory of any float dtype
  bool fresh = true;        // the next gradient overwrites; later ones add
  int zeroed = 0;           // calls of zero()
  int owed = 0;  // losses that added to `grad` in their forward, with the backward still to run
  // Called when a backward pass has added all its gradients to this leaf.
  std::function<void(Leaf&)> on_ready;
  std::function<void()> on_use;  // of a parameter: called before an op reads it

  void zero();  // the next gradient overwrites
};

class Variable {
 public:
  Variable() = default;
  Variable(Tensor value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose

  // A leaf: backward() collects its gradient in grad(), which has the value's dtype.
  static Variable leaf(Tensor value, std::string name = "leaf");
  // A leaf with a given gradient store, as parameters have.
  static Variable leaf(Tensor value, std::shared_ptr<Leaf> store);

  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  Device device() const { return value_.device(); }
  int64_t dim(int i) const { return value_.dim(i); }
  int64_t numel() const { return value_.numel(); }
  bool defined() const { return value_.defined(); }

  bool requires_grad() const { return node_ || leaf_; }
  const Tensor& grad() const;  // of a leaf; throws when none was computed
  Leaf* leaf_store() const { return leaf_.get(); }
  Variable detach() const { return Variable(value_); }

  // with_recipe: an op that saves this Variable for its backward (autograd/saved.h) keeps the
  // recipe instead of the value. without_recipe: it keeps the value.
  Variable with_recipe(std::shared_ptr<Recipe> recipe) const;
  Variable without_recipe() const;

 private:
  friend class Node;
  friend class Tape;
  friend class Saved;
  Tensor value_;
  std::shared_ptr<Node> node_;      // the op that computed it, or null
  int output_ = 0;                  // index among the outputs of the node
  std::shared_ptr<Leaf> leaf_;      // the store of a leaf, or null; neither: a constant
  std::shared_ptr<Recipe> recipe_;  // computes the value again, where that is cheap
};

}  // namespace quern
