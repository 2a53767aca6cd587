#include "nn/arena.h"

#include <gtest/gtest.h>

#include "support/two_layers.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(ParameterArena, AlignsSlicesAndKeepsPaddingZero) {
  TwoLayers model(Precision::bf16);
  const ParameterArena& arena = *model.arena;
  const std::vector<bool> used = used_elements(arena);
  for (const Parameter* parameter : arena.parameters()) EXPECT_EQ(parameter->begin() % 128, 0);
  const std::vector<float> values = arena.exact_values().to_vector<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (used[i]) continue;
    EXPECT_EQ(values[i], 0.0f) << i;
  }
  EXPECT_TRUE(arena.parameters().back()->group.frozen);
  EXPECT_GE(arena.parameters().back()->begin(), arena.trainable());
}

TEST(ParameterArena, UnreachedGradientsBecomeZero) {
  TwoLayers model(Precision::fp32);
  ParameterArena& arena = *model.arena;
  fill(arena.grads(), 5.0);
  arena.zero_grad();
  arena.finish_gradients();
  for (const Parameter* parameter : arena.parameters()) {
    if (parameter->group.frozen) continue;
    for (const float g : parameter->grad().to_vector<float>()) EXPECT_EQ(g, 0.0f);
  }
}

TEST(Parameter, CannotBeUsedBeforeTheArena) {
  const Linear layer(3, 4);
  EXPECT_THROW(layer(zeros({2, 3})), Error);
}

}  // namespace
}  // namespace quern
