#include <gtest/gtest.h>

#include "tensor/context.h"
#include "tensor/factory.h"

namespace quern {
namespace {

void expect_the_first_numbers() {
  const auto drawn = normal({100}, 0.0, 1.0).to_vector<float>();
  Context fresh(kCpu, static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()));
  const ContextScope scope(fresh);
  EXPECT_EQ(drawn, normal({100}, 0.0, 1.0).to_vector<float>());
}

// Two tests of one body: the one that runs later would draw other numbers if the first had drawn
// from the same stream.
TEST(FreshContext, InputsDoNotDependOnTheTestsBefore) {
  expect_the_first_numbers();
}
TEST(FreshContext, NorDoTheseAfterThem) {
  expect_the_first_numbers();
}

}  // namespace
}  // namespace quern
