// y = x w^T + b. Weight (out, in), as everywhere in Quern.
#pragma once

#include <optional>

#include "nn/module.h"

namespace quern {

class Linear : public Layer {
 public:
  Linear(int64_t in, int64_t out, Init init, bool bias = false);
  // A fused weight: several projections of one input. Files name its parts. A bias starts at 0.
  Linear(int64_t in, int64_t out, Init init, std::vector<ParameterPart> parts, bool bias = false,
         std::vector<ParameterPart> bias_parts = {});
  // PyTorch's default range, uniform replaced by a normal of the same variance, and a zero bias.
  Linear(int64_t in, int64_t out, bool bias = true);

  Variable forward(const Variable& x) const override;  // (..., in) -> (..., out)
  void declare(ParameterList& list) override;

  Parameter weight;               // (out, in)
  std::optional<Parameter> bias;  // (out)
};

}  // namespace quern
