// Measured GEMM tables: written, added to, used, and refused on another platform.
#include "train/tune.h"

#include <gtest/gtest.h>

#include "support/files.h"
#include "tensor/cuda_runtime.h"
#include "tensor/gemm_table.h"
#include "train/setup.h"

namespace quern {
namespace {

using namespace testing_support;

class GpuTune : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    config_.compute.device = DeviceChoice::cuda;
    config_.compute.precision = Precision::bf16;
    config_.model.d_model = 64;
    config_.model.d_ff = 128;
    config_.model.layers = 1;
    config_.model.heads = 2;
    config_.model.vocab_size = 300;
    config_.model.context = 40;
    config_.train.batch = 2;
  }
  TuneResult tune() const {
    const auto context = make_context(config_.compute, 1);
    const ContextScope scope(*context);
    return tune_gemms(config_, path());
  }
  std::string path() const { return (folder_.path() / "table.txt").string(); }

  TemporaryFolder folder_;
  Config config_;
};

TEST_F(GpuTune, ATableIsWrittenAddedToAndUsed) {
  const TuneResult first = tune();
  EXPECT_EQ(first.products, first.measured);
  EXPECT_GE(first.products, 12);  // four linear layers and the head, three products each, or shared
  EXPECT_EQ(tune().measured, 0);
  config_.model.context = 24;  // other shapes
  const TuneResult more = tune();
  EXPECT_GT(more.measured, 0);
  EXPECT_EQ(more.products, first.products + more.measured);

  config_.compute.gemm_table = path();
  const auto context = make_context(config_.compute, 1);
  const ContextScope scope(*context);
  EXPECT_EQ(gemm_table_size(), more.products);
}

TEST_F(GpuTune, AnotherPlatformsTableIsRefused) {
  tune();
  std::string text = read_file(path());
  text.replace(text.find(", cuBLASLt"), 1, " II,");
  write_file(path(), text);
  EXPECT_THROW(tune(), UsageError);
  config_.compute.gemm_table = path();
  EXPECT_THROW(make_context(config_.compute, 1), UsageError);
  config_.compute.gemm_table = "/nowhere/table.txt";
  EXPECT_THROW(make_context(config_.compute, 1), UsageError);
}

}  // namespace
}  // namespace quern
