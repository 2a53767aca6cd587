// Measured GEMM tables: written, added to, used, and refused on another platform.
#include "train/tune.h"

#include <gtest/gtest.h>

#include <set>

#include "autograd/ops/matmul.h"
#include "autograd/tape.h"
#include "kernels/device_traits.h"
#include "run/make_context.h"
#include "support/files.h"
#include "support/training.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "tensor/gemm_table.h"

namespace quern {
namespace {

using namespace testing_support;

class GpuTune : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    config_.compute.device = DeviceChoice::cuda;
    config_.compute.precision = Precision::bf16;
    static_cast<ModelConfig&>(config_.model) = tiny_model();
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
  EXPECT_EQ(first.products, std::ssize(first.measured));
  EXPECT_GE(first.products, 12);  // four linear layers and the head, three products each, or shared
  for (const MeasuredProduct& product : first.measured) {
    EXPECT_GT(product.chosen_us, 0.0) << product.name;
    EXPECT_EQ(product.before_us, 0.0) << product.name << " is in no shipped table";
    EXPECT_FALSE(product.sustained) << product.name << " takes a few microseconds";
  }
  EXPECT_EQ(tune().measured.size(), 0u);
  config_.model.context = 24;  // other shapes
  const TuneResult more = tune();
  EXPECT_FALSE(more.measured.empty());
  EXPECT_EQ(more.products, first.products + std::ssize(more.measured));

  config_.compute.gemm_table = path();
  const auto context = make_context(config_.compute, 1);
  const ContextScope scope(*context);
  EXPECT_EQ(gemm_table_size(), more.products);
}

TEST_F(GpuTune, Fp8ProductsHaveNamesOfTheirOwn) {
  if (!kernels::cuda::query_device_traits().hopper_code) GTEST_SKIP() << "no FP8";
  config_.compute.precision = Precision::fp8;
  std::set<std::string> names;
  for (const MeasuredProduct& product : tune().measured) names.insert(product.name);
  EXPECT_TRUE(names.contains("fp8 96 x 64 x 64 (nt) -> bf16, tiles of the right")) << [&] {
    std::string all;
    for (const std::string& name : names) all += name + "\n";
    return all;
  }();
  EXPECT_EQ(tune().measured.size(), 0u);
}

// The measured product is also correct.
TEST_F(GpuTune, ALongProductIsDecidedUnderLoad) {
  config_.compute.fp32_products = Fp32Products::fma;  // the library's own
  const auto context = make_context(config_.compute, 1);
  const ContextScope scope(*context);
  const NoGrad no_grad;
  const Tensor a = normal({2048, 2048}, 0.0, 1.0), b = normal({2048, 2048}, 0.0, 1.0);
  const std::vector<float> expected = matmul(a, b).value().to_vector<float>();
  measure_gemm_algorithms();
  EXPECT_EQ(gemm_table_size(), 0);
  const std::vector<float> found = matmul(a, b).value().to_vector<float>();
  const std::vector<MeasuredProduct> products = measured_products();
  ASSERT_EQ(products.size(), 1u);
  EXPECT_EQ(products[0].name, "f32 2048 x 2048 x 2048 (nn) -> f32");
  EXPECT_TRUE(products[0].sustained);
  EXPECT_GT(products[0].before_us, 0.0) << "the table held it";
  EXPECT_LE(products[0].chosen_us, products[0].before_us);
  EXPECT_LE(products[0].chosen_us, products[0].favourite_us);
  for (size_t i = 0; i < found.size(); i += 997) {  // sums of 2048 in another order
    EXPECT_NEAR(found[i], expected[i], 1e-3);
  }
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
