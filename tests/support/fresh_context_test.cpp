#include <gtest/gtest.h>

#include "tensor/context.h"
#include "tensor/factory.h"

namespace quern {
namespace {

// As a test before this one would, from the Context that a thread has without the listener.
[[maybe_unused]] const Tensor drawn_before = normal({100}, 0.0, 1.0);

TEST(FreshContext, InputsDoNotDependOnWhatWasDrawnBefore) {
  const auto drawn = normal({100}, 0.0, 1.0).to_vector<float>();
  Context fresh(kCpu, static_cast<uint64_t>(testing::GTEST_FLAG(random_seed)));
  const ContextScope scope(fresh);
  EXPECT_EQ(drawn, normal({100}, 0.0, 1.0).to_vector<float>());
}

}  // namespace
}  // namespace quern
