#include "model/positions.h"

#include <numeric>

#include "autograd/ops/binary.h"
#include "tensor/factory.h"

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
  const Tensor places = places_.slice(0, begin, begin + tokens.dim(1));
  return add(embedding(tokens, out), rows_(places, out));
}

void LearnedPositions::declare(ParameterList& list) {
  rows_.declare(list);
  list.add_constant([this] {
    std::vector<int32_t> places(static_cast<size_t>(rows_.weight.shape()[0]));
    std::iota(places.begin(), places.end(), 0);
    places_ = from_vector(places, {rows_.weight.shape()[0]});
  });
}

}  // namespace quern
