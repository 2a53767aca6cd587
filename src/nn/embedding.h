// Token embedding: a row of the weight (V, C) for each id.
#pragma once

#include "nn/module.h"

namespace quern {

class Embedding : public Module {
 public:
  Embedding(int64_t vocab_size, int64_t width, Init init);

  // ids (...) i32 -> (..., C) in the weight's compute type, or in `out`.
  Variable operator()(const Tensor& ids, DType out) const;
  void declare(ParameterList& list) override { list.add("weight", weight); }

  Parameter weight;  // (V, C)
};

}  // namespace quern
