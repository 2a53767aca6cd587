// A small model for tests of the arena and of optimizers.
#pragma once

#include <optional>
#include <vector>

#include "nn/arena.h"
#include "nn/linear.h"
#include "nn/sequential.h"

namespace quern::testing_support {

// Two odd-sized layers, one of them frozen in part: ranges with gaps.
struct TwoLayers {
  explicit TwoLayers(Precision precision) {
    auto& first = net.append<Linear>(3, 5, Init::normal(1.0), true);
    auto& second = net.append<Linear>(5, 7, Init::normal(1.0), true);
    second.bias->group.frozen = true;
    first.weight.group.lr_scale = 0.5;
    arena.emplace(net, ParameterArena::Options{precision, true, 7});
  }
  Sequential net;
  std::optional<ParameterArena> arena;
};

// Which elements of the arena belong to a parameter.
inline std::vector<bool> used_elements(const ParameterArena& arena) {
  std::vector<bool> used(static_cast<size_t>(arena.size()), false);
  for (const Parameter* parameter : arena.parameters()) {
    for (int64_t i = 0; i < parameter->numel(); ++i)
      used[static_cast<size_t>(parameter->begin() + i)] = true;
  }
  return used;
}

}  // namespace quern::testing_support
