// bench attention and bench kernels on the GPU, at small sizes: every row has figures, and the
// captured variant counts the memory of the launched one.
#include <gtest/gtest.h>

#include "bench/attention.h"
#include "bench/kernels.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

class GpuBenchRows : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuBenchRows, AttentionInThreeVariants) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  AttentionBenchOptions options;
  options.dims = {32};
  options.lengths = {96, 256};
  options.tokens = 256;
  options.steps = 3;
  const auto rows = bench_attention(options);
  // two model shapes and one of the course a length, two types, three variants
  ASSERT_EQ(rows.size(), 2u * 3u * 2u * 3u);
  for (size_t i = 0; i < rows.size(); i += 3) {
    const AttentionRow &naive = rows[i], &graph = rows[i + 1], &flash = rows[i + 2];
    EXPECT_EQ(graph.variant, AttentionVariant::naive_graph);
    EXPECT_EQ(graph.saved_bytes, naive.saved_bytes);
    EXPECT_EQ(graph.peak_bytes, naive.peak_bytes);
    EXPECT_LT(flash.saved_bytes, naive.saved_bytes);
    for (const AttentionRow* row : {&naive, &graph, &flash}) {
      EXPECT_EQ(row->out_of_memory, "");
      EXPECT_GT(row->forward_tflops(), 0.0);
      EXPECT_GT(row->backward_tflops(), 0.0);
    }
  }
}

TEST_F(GpuBenchRows, AttentionOutOfMemoryIsARow) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  AttentionBenchOptions options;
  options.grids = {AttentionGrid::course};
  options.dims = {8};
  options.lengths = {int64_t{1} << 19, 64};  // scores of 2^42 bytes or more
  options.variants = {AttentionVariant::naive, AttentionVariant::naive_graph};
  options.steps = 1;
  const auto rows = bench_attention(options);
  ASSERT_EQ(rows.size(), 8u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].out_of_memory.empty(), i >= 4) << i;
}

TEST_F(GpuBenchRows, EveryKernel) {
  Context context(Device{DeviceType::cuda, 0});
  const ContextScope scope(context);
  KernelBenchOptions options;
  options.rows = 33;
  options.steps = 2;
  for (const KernelRow& row : bench_kernels(options)) {
    EXPECT_EQ(row.out_of_memory, "") << row.kernel << " " << row.variant;
    EXPECT_GT(row.share(), 0.0) << row.kernel << " " << row.variant;
  }
}

}  // namespace
}  // namespace quern
