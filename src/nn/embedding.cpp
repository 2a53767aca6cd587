#include "nn/embedding.h"

#include "autograd/ops/embedding.h"

namespace quern {

Embedding::Embedding(int64_t vocab_size, int64_t width, Init init)
    : weight(Shape{vocab_size, width}, init) {
  weight.group.kind = ParameterKind::embedding;
}

Variable Embedding::operator()(const Tensor& ids, DType out) const {
  return embedding(weight.weight(), ids, out);
}

}  // namespace quern
