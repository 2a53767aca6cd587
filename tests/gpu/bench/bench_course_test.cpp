// bench accumulate, dtypes, matmul and mlp on the GPU: sums and dtypes are those of the CPU, and
// every row has figures.
#include <gtest/gtest.h>

#include "bench/accumulate.h"
#include "bench/dtypes.h"
#include "bench/matmul.h"
#include "bench/mlp.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

class GpuBenchCourse : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Each addition is one IEEE addition in FP32 and one rounding: the same bits on both devices.
TEST_F(GpuBenchCourse, AccumulatesToTheCpusBits) {
  for (const AccumulateCase& one : accumulate_cases()) {
    const AccumulateRow on_cpu = accumulate_terms(one, 1000);
    Context context(Device{DeviceType::cuda, 0});
    const ContextScope scope(context);
    const AccumulateRow on_gpu = accumulate_terms(one, 1000);
    EXPECT_EQ(on_gpu.sum, on_cpu.sum);
    EXPECT_EQ(on_gpu.term, on_cpu.term);
    EXPECT_EQ(on_gpu.last_step, on_cpu.last_step);
  }
}

TEST_F(GpuBenchCourse, TensorsHaveTheCpusDtypes) {
  const std::vector<Precision> precisions{Precision::fp32, Precision::tf32, Precision::bf16};
  for (const DtypeModel model : {DtypeModel::toy, DtypeModel::lm}) {
    const auto on_cpu = bench_dtypes(model, precisions);
    Context context(Device{DeviceType::cuda, 0});
    const ContextScope scope(context);
    const auto on_gpu = bench_dtypes(model, precisions);
    ASSERT_EQ(on_gpu.size(), on_cpu.size());
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      EXPECT_EQ(on_gpu[i].name, on_cpu[i].name);
      EXPECT_EQ(on_gpu[i].dtypes, on_cpu[i].dtypes) << on_cpu[i].kind << " " << on_cpu[i].name;
    }
  }
}

TEST_F(GpuBenchCourse, MatmulAndMlpHaveFigures) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  EXPECT_EQ(default_matmul_shapes().back(), (MatmulShape{16384, 16384, 16384}));
  for (const Precision precision : default_matmul_precisions()) {
    EXPECT_GT(bench_matmul({100, 60, 36}, precision, {1, 3}).flops_per_second(), 0.0);
    MlpBenchOptions options;
    options.base = {2, 32, 16, 2};
    options.scales = {3};
    options.optimizer = true;
    options.trials = 2;
    for (const MlpRow& row : bench_mlp(options, precision)) {
      EXPECT_EQ(row.out_of_memory, "");
      EXPECT_GT(row.forward.median, 0.0);
      EXPECT_GT(row.backward.median, 0.0);
      EXPECT_GT(row.optimizer.median, 0.0);
    }
  }
}

// A result of 2^49 bytes.
TEST_F(GpuBenchCourse, MatmulOutOfMemoryIsARow) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  const int64_t n = int64_t{1} << 24;
  EXPECT_NE(bench_matmul({n, n, 1}, Precision::bf16, {1, 1}).out_of_memory, "");
  EXPECT_EQ(bench_matmul({64, 64, 64}, Precision::bf16, {1, 1}).out_of_memory, "");
}

}  // namespace
}  // namespace quern
