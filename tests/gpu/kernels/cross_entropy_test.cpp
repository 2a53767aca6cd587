// Cross-entropy on the GPU against the CPU in double: vocabularies for a warp and for a block.
#include "kernels/cross_entropy.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

constexpr int32_t kIgnore = -100;

class CrossEntropyGpu : public GpuTest {};

std::vector<int32_t> targets_with_ignored(int64_t N, int64_t V) {
  std::vector<int32_t> targets(static_cast<size_t>(N));
  for (int64_t i = 0; i < N; ++i) {
    const auto target = static_cast<int32_t>((i * 7919 + V - 1) % V);
    targets[static_cast<size_t>(i)] = i % 5 == 3 ? kIgnore : target;
  }
  return targets;
}

template <class T>
void check(int64_t N, int64_t V, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << N << " x " << V << ", shift " << shift);
  const auto logits = random_values<T>(N * V, 1, -10.0, 10.0);
  const auto targets = targets_with_ignored(N, V);
  std::vector<double> row_loss(targets.size()), lse(targets.size()), dlogits(logits.size());
  kernels::cpu::cross_entropy_forward<double>(row_loss.data(), lse.data(), widen(logits).data(),
                                              targets.data(), N, V, kIgnore, {});
  const std::vector<float> float_lse(lse.begin(), lse.end());
  const float scale = 0.25f, dloss = 1.5f;
  const double wide_scale = scale, wide_dloss = dloss;
  kernels::cpu::cross_entropy_backward<double>(dlogits.data(), widen(logits).data(),
                                               widen(float_lse).data(), targets.data(), &wide_scale,
                                               &wide_dloss, N, V, kIgnore, {});

  DeviceBuffer<T> device_logits(logits, shift), device_dlogits(N * V, shift);
  DeviceBuffer<int32_t> device_targets(targets);
  DeviceBuffer<float> device_loss(N), device_lse(N);
  DeviceBuffer<float> device_scale(std::vector<float>{scale}),
      device_dloss(std::vector<float>{dloss});
  const auto actual = run_twice(device_loss, [&] {
    kernels::cuda::cross_entropy_forward(device_loss.get(), device_lse.get(), device_logits.get(),
                                         device_targets.get(), N, V, kIgnore, Stream{});
  });
  // A sum of up to 2e5 exponentials as a tree, relative 1e-5, whose log shifts lse by as much; lse
  // itself (below 23) is rounded to 1e-6.
  expect_near(device_lse.download(), lse, 0.0, 1.5e-5);
  expect_near(actual, row_loss, 0.0, 2e-5);
  device_lse.expect_guards_intact();

  device_lse.upload(float_lse);
  const auto run = [&](T* out) {
    kernels::cuda::cross_entropy_backward(out, device_logits.get(), device_lse.get(),
                                          device_targets.get(), device_scale.get(),
                                          device_dloss.get(), N, V, kIgnore, Stream{});
  };
  const auto gradient = run_twice(device_dlogits, [&] { run(device_dlogits.get()); });
  // exp of a difference rounded to 2e-6, relative; at the target p - 1 rounds at 1.
  expect_near(gradient, dlogits, storage_error<T>() + 4e-6, 1e-7);
  run(device_logits.get());  // in place
  expect_same_bits(device_logits.download(), gradient);
}

TEST_F(CrossEntropyGpu, AnySize) {
  const int64_t sizes[][2] = {{0, 5},    {1, 1},    {31, 31},   {33, 33},   {1025, 257},
                              {9, 1024}, {5, 1025}, {70, 4096}, {4, 50257}, {2, 200003}};
  for (const auto& [N, V] : sizes) {
    for (const int64_t shift : {0, 1}) {
      check<float>(N, V, shift);
      check<bfloat16>(N, V, shift);
    }
  }
}

// One pass over the logits against the two above in double.
template <class T>
void check_one_pass(int64_t N, int64_t V, int64_t shift, float z_loss = 0.0f) {
  SCOPED_TRACE(::testing::Message() << N << " x " << V << ", shift " << shift << ", z " << z_loss);
  const auto logits = random_values<T>(N * V, 2, -10.0, 10.0);
  const auto targets = targets_with_ignored(N, V);
  std::vector<double> row_loss(targets.size()), row_z(targets.size()), dlogits = widen(logits);
  const float scale = 0.375f;
  const double wide_scale = scale;
  kernels::cpu::cross_entropy_forward_backward<double>(row_loss.data(), dlogits.data(),
                                                       targets.data(), &wide_scale, N, V, kIgnore,
                                                       {row_z.data(), z_loss}, {});

  DeviceBuffer<T> device_logits(logits, shift);
  DeviceBuffer<int32_t> device_targets(targets);
  DeviceBuffer<float> device_loss(N), device_z(N), device_scale(std::vector<float>{scale});
  const kernels::ZLoss<float> z{z_loss == 0.0f ? nullptr : device_z.get(), z_loss};
  const auto run = [&] {
    device_logits.upload(logits);
    kernels::cuda::cross_entropy_forward_backward(device_loss.get(), device_logits.get(),
                                                  device_targets.get(), device_scale.get(), N, V,
                                                  kIgnore, z, Stream{});
  };
  // As in check: lse is off by 1.5e-5 at most, which is a relative error of the probabilities; at
  // the target p - 1 rounds at 1.
  expect_near(run_twice(device_loss, run), row_loss, 0.0, 2e-5);
  expect_near(device_logits.download(), dlogits, storage_error<T>() + 2e-5, 4e-7);
  device_logits.expect_guards_intact();
  // lse, below 23, is off by 1.5e-5 at most: its square by twice their product.
  if (z.rows != nullptr) expect_near(device_z.download(), row_z, 1e-6, 7e-4);
  device_z.expect_guards_intact();
  const auto once = device_logits.download();
  run();
  expect_same_bits(device_logits.download(), once);
}

// Rows of a warp; of a block, if they fit in shared memory (57,344 bf16, 28,672 f32); of a cluster
// (229,376 and 114,688); and longer ones. Rows that take exactly 48 KiB, in a block and in a
// cluster: with the kernel's static memory, more than a block has without opting in.
TEST_F(CrossEntropyGpu, OnePassAnySize) {
  const int64_t sizes[][2] = {{0, 5},     {1, 1},     {31, 31},   {33, 33},    {1025, 256},
                              {9, 1024},  {5, 1025},  {5, 1032},  {70, 4096},  {3, 10000},
                              {4, 50257}, {5, 50304}, {3, 57352}, {2, 151936}, {2, 240000},
                              {3, 12288}, {3, 24576}, {3, 49152}, {2, 98304}};
  for (const auto& [N, V] : sizes) {
    for (const int64_t shift : {0, 1}) {
      for (const float z_loss : {0.0f, 0.01f}) {
        check_one_pass<float>(N, V, shift, z_loss);
        check_one_pass<bfloat16>(N, V, shift, z_loss);
      }
    }
  }
}

// More clusters than the GPU runs at once.
TEST_F(CrossEntropyGpu, OnePassManyClusters) {
  check_one_pass<float>(150, 58000, 0);
  check_one_pass<bfloat16>(150, 58000, 0);
}

TEST_F(CrossEntropyGpu, OnePassBadTargetGivesNaN) {
  for (const int64_t V : {33, 2048, 60000}) {
    DeviceBuffer<float> logits(random_values<float>(3 * V, 1)), loss(3);
    DeviceBuffer<float> scale(std::vector<float>{1.0f});
    const auto end = static_cast<int32_t>(V);
    DeviceBuffer<int32_t> targets(std::vector<int32_t>{-1, end, end - 1});
    kernels::cuda::cross_entropy_forward_backward(loss.get(), logits.get(), targets.get(),
                                                  scale.get(), 3, V, kIgnore, {}, Stream{});
    const auto actual = loss.download();
    EXPECT_TRUE(std::isnan(actual[0]));
    EXPECT_TRUE(std::isnan(actual[1]));
    EXPECT_TRUE(std::isfinite(actual[2]));
  }
}

TEST_F(CrossEntropyGpu, Scale) {
  for (const int64_t n : {0, 1, 33, 100, 2048, 4097, 50000, 70001}) {
    const auto targets = targets_with_ignored(n, 11);
    double count = 0.0;
    for (const int32_t target : targets) count += target != kIgnore;
    DeviceBuffer<int32_t> device_targets(targets);
    DeviceBuffer<float> scale(1);
    kernels::cuda::cross_entropy_scale(scale.get(), device_targets.get(), n, 0.25, kIgnore,
                                       Stream{});
    expect_near(scale.download(), {count == 0.0 ? 0.0 : 0.25 / count}, rounding<float>(), 0.0);
  }
}

TEST_F(CrossEntropyGpu, BadTargetGivesNaN) {
  const int64_t V = 33;
  DeviceBuffer<float> logits(random_values<float>(3 * V, 1)), loss(3), lse(3);
  DeviceBuffer<int32_t> targets(std::vector<int32_t>{-1, 33, 32});
  kernels::cuda::cross_entropy_forward(loss.get(), lse.get(), logits.get(), targets.get(), 3, V,
                                       kIgnore, Stream{});
  const auto actual = loss.download();
  EXPECT_TRUE(std::isnan(actual[0]));
  EXPECT_TRUE(std::isnan(actual[1]));
  EXPECT_TRUE(std::isfinite(actual[2]));
}

TEST_F(CrossEntropyGpu, MinusInfinityIsNoChance) {
  const int64_t V = 2050;  // whole threads see nothing but -inf
  std::vector<float> row(static_cast<size_t>(V), -INFINITY);
  row[7] = 1.0f;
  row[2049] = 1.0f;
  DeviceBuffer<float> logits(row), loss(1), lse(1);
  DeviceBuffer<int32_t> targets(std::vector<int32_t>{7});
  kernels::cuda::cross_entropy_forward(loss.get(), lse.get(), logits.get(), targets.get(), 1, V,
                                       kIgnore, Stream{});
  expect_near(loss.download(), {std::log(2.0)}, 1e-6, 0.0);  // exact but for log and one addition
}

TEST_F(CrossEntropyGpu, Mean) {
  for (const int64_t n : {0, 1, 31, 33, 100, 1025, 2048, 4097, 50000, 70001}) {
    const auto row_loss = random_values<float>(n, 1, 0.0, 8.0);
    const auto targets = targets_with_ignored(n, 11);
    double sum = 0.0, count = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      sum += row_loss[static_cast<size_t>(i)];
      count += targets[static_cast<size_t>(i)] != kIgnore;
    }
    DeviceBuffer<float> device_row_loss(row_loss), loss(1), inverse(1);
    DeviceBuffer<int32_t> device_targets(targets);
    const auto actual = run_twice(loss, [&] {
      kernels::cuda::cross_entropy_mean(loss.get(), inverse.get(), device_row_loss.get(),
                                        device_targets.get(), n, kIgnore, Stream{});
    });
    // Positive terms, at most 69 additions in a row, then a tree: under 100 roundings of 6e-8.
    expect_near(actual, {count == 0.0 ? 0.0 : sum / count}, 5e-6, 0.0);
    expect_near(inverse.download(), {count == 0.0 ? 0.0 : 1.0 / count}, rounding<float>(), 0.0);
  }
}

// If no target counts, the results are 0 and 0, whatever the losses contain.
TEST_F(CrossEntropyGpu, MeanOfNothingButIgnored) {
  for (const int64_t n : {1, 100, 4097}) {
    DeviceBuffer<float> row_loss(random_values<float>(n, 1)), loss(1), inverse(1), scale(1);
    DeviceBuffer<int32_t> targets(std::vector<int32_t>(static_cast<size_t>(n), kIgnore));
    kernels::cuda::cross_entropy_mean(loss.get(), inverse.get(), row_loss.get(), targets.get(), n,
                                      kIgnore, Stream{});
    kernels::cuda::cross_entropy_scale(scale.get(), targets.get(), n, 2.0, kIgnore, Stream{});
    EXPECT_EQ(loss.download()[0], 0.0f);
    EXPECT_EQ(inverse.download()[0], 0.0f);
    EXPECT_EQ(scale.download()[0], 0.0f);
  }
}

}  // namespace
}  // namespace quern::test
