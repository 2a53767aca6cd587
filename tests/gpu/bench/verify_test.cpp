// The whole model on a GPU against transformers; the twin of tests/bench/verify_test.cpp.
#include "bench/verify_cases.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

using namespace testing_support;

class VerifyOnGpu : public testing::TestWithParam<VerifyParameter> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(VerifyOnGpu, AgreesWithTransformers) {
  const VerifyResult result = verify_on(DeviceChoice::cuda, GetParam());
  EXPECT_TRUE(result.passed()) << verify_table(result, false);
}

// The same bits twice: no atomics, no algorithm chosen by timing.
TEST_P(VerifyOnGpu, TwiceIsOnce) {
  const VerifyResult first = verify_on(DeviceChoice::cuda, GetParam());
  const VerifyResult second = verify_on(DeviceChoice::cuda, GetParam());
  ASSERT_EQ(first.deviations.size(), second.deviations.size());
  for (size_t i = 0; i < first.deviations.size(); ++i) {
    EXPECT_EQ(first.deviations[i].error, second.deviations[i].error) << first.deviations[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, VerifyOnGpu, all_verify_parameters(), verify_name);

}  // namespace
}  // namespace quern
