#include "model/positions.h"

#include "autograd/ops/embedding.h"

namespace quern {

Variable Positions::embed(const Embedding& embedding, const Tensor& tokens, int64_t,
                          DType out) const {
  return embedding(tokens, out);
}

void RotaryPositions::declare(ParameterList& list) {
  list.add_constant(
      [this] { table_ = make_rope_table(positions_, head_dim_, theta_, DType::f32, scaling_); });
}

Variable LearnedPositions::embed(const Embedding& embedding, const Tensor& tokens, int64_t begin,
                                 DType out) const {
  return add_rows(embedding(tokens, out), rows_.weight.weight(), begin);
}

}  // namespace quern
