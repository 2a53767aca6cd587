// A model's weight. A module makes its parameters (shape, initial values, treatment) and names them
// in declare(); ParameterTable places them in the arena; ParameterArena gives them memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/variable.h"
#include "nn/init.h"
#include "nn/options.h"

namespace quern {

// The role of a parameter in its model.
enum class ParameterKind {
  hidden_matrix,  // maps hidden states to hidden states; a fused one maps them part by part
  embedding,      // a row for each token or position; also a head that shares it
  head,           // from the last hidden states to logits
  vector          // norm weights and biases
};

// How the optimizer treats a parameter.
struct ParameterGroup {
  ParameterKind kind = ParameterKind::hidden_matrix;  // of matrices; vector for vectors
  double lr_scale = 1.0;
  bool decay = true;    // weight decay; off for vectors by default
  bool frozen = false;  // no gradient and no moments
};

// Rows of a parameter with a name of their own: q_proj within the fused q-k-v weight. Their initial
// values are those of a separate parameter.
struct ParameterPart {
  std::string name;  // within its module: "q_proj.weight"
  int64_t row_begin = 0;
  int64_t rows = 0;
  std::optional<Init> init = {};  // none: the parameter's
};

class Parameter {
 public:
  Parameter(Shape shape, Init init);
  Parameter(Shape shape, Init init, std::vector<ParameterPart> parts);

  const std::string& name() const { return name_; }  // full path, once it has memory
  const Shape& shape() const { return shape_; }
  int64_t numel() const { return shape_.numel(); }
  const std::vector<ParameterPart>& parts() const { return parts_; }  // empty: not fused

  // For GEMMs: the BF16 copy under bf16, else the FP32 weight. Its gradient is FP32 either way.
  const Variable& weight() const { return checked(weight_); }
  // For parameters kept in FP32 under every precision: norm weights. Other parameters lack it where
  // the arena has vectors().
  const Variable& master() const { return checked(master_); }

  int64_t begin() const { return begin_; }  // first element in the arena
  const Tensor& value() const { return master().value(); }
  const Tensor& grad() const { return store_->grad; }  // undefined when frozen
  const std::shared_ptr<Leaf>& leaf() const { return store_; }

  ParameterGroup group;
  bool fp32 = false;  // its module reads only master()

 private:
  friend class ParameterArena;
  const Variable& checked(const Variable& variable) const;

  std::string name_;
  Shape shape_;
  Init init_;
  std::vector<ParameterPart> parts_;
  int64_t begin_ = -1;
  std::shared_ptr<Leaf> store_;
  Variable master_, weight_;
};

}  // namespace quern
