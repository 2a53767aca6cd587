// Layers applied one after the other.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace quern {

class Sequential : public Layer {
 public:
  // Sequential model; model.append<Linear>(2, 16); model.append<ReLU>(); ...
  template <class L, class... Arguments>
  L& append(Arguments&&... arguments) {
    auto layer = std::make_unique<L>(std::forward<Arguments>(arguments)...);
    L& reference = *layer;
    layers_.push_back(std::move(layer));
    return reference;
  }

  Variable forward(const Variable& x) const override {
    Variable y = x;
    for (const auto& layer : layers_) y = layer->forward(y);
    return y;
  }

  void declare(ParameterList& list) override {
    for (size_t i = 0; i < layers_.size(); ++i) list.add(std::to_string(i), *layers_[i]);
  }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace quern
