// Weights in two parts on the GPU: the bits of the CPU, in vectors and element by element.
#include "kernels/weights.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::WeightRun;
using kernels::cuda::Stream;

class WeightsGpu : public GpuTest {};

TEST_F(WeightsGpu, SplitAndJoinAsTheCpu) {
  for (const int64_t n : {0, 1, 7, 1025, 70001}) {
    for (const int64_t shift : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << n << " weights, shift " << shift);
      const auto size = static_cast<size_t>(n);
      std::vector<float> weights = random_values<float>(n, 1);
      for (size_t i = 3; i < size; i += 5) {  // halfway between two BF16 numbers
        const auto bits = std::bit_cast<uint32_t>(weights[i]);
        weights[i] = std::bit_cast<float>((bits & 0xFFFF0000u) | 0x8000u);
      }
      const uint32_t special[] = {0x80000000u, 0x00000001u, 0x807FFFFFu, 0x7F7FFFFFu,
                                  0xFF7F8000u, 0x7F800000u, 0xFF800000u};
      for (size_t i = 100; i < size; i += 101) {
        weights[i] = std::bit_cast<float>(special[i / 101 % std::size(special)]);
      }
      std::vector<bfloat16> copies(size);
      std::vector<uint16_t> low(size);
      kernels::cpu::split_weights(copies.data(), low.data(), weights.data(), n, {});
      DeviceBuffer<float> device_weights(weights, shift), joined(size, shift);
      DeviceBuffer<bfloat16> device_copies(size, shift), rounded(size, shift);
      DeviceBuffer<uint16_t> device_low(size, shift);
      kernels::cuda::split_weights(device_copies.get(), device_low.get(), device_weights.get(), n,
                                   Stream{});
      kernels::cuda::split_weights(rounded.get(), nullptr, device_weights.get(), n, Stream{});
      kernels::cuda::join_weights(joined.get(), device_copies.get(), device_low.get(), n, Stream{});
      expect_same_bits(device_copies.download(), copies);
      expect_same_bits(rounded.download(), copies);
      EXPECT_EQ(device_low.download(), low);
      expect_same_bits(joined.download(), weights);
      device_copies.expect_guards_intact();
      device_low.expect_guards_intact();
      joined.expect_guards_intact();
    }
  }
}

TEST_F(WeightsGpu, JoinRuns) {
  const auto weights = random_values<float>(3000, 2), before = random_values<float>(2000, 3);
  DeviceBuffer<float> device_weights(weights), joined(before);
  DeviceBuffer<bfloat16> copies(3000);
  DeviceBuffer<uint16_t> low(3000);
  const std::vector<WeightRun> runs = {{100, 0, 65}, {1, 65, 1}, {2000, 128, 1000}, {5, 9, 0}};
  DeviceBuffer<WeightRun> table(runs);
  kernels::cuda::split_weights(copies.get(), low.get(), device_weights.get(), 3000, Stream{});
  kernels::cuda::join_runs(joined.get(), copies.get(), low.get(), table.get(), std::ssize(runs),
                           Stream{});
  std::vector<float> expected = before;
  for (const WeightRun& run : runs) {
    std::copy_n(weights.begin() + run.begin, run.count, expected.begin() + run.to);
  }
  expect_same_bits(joined.download(), expected);
}

}  // namespace
}  // namespace quern::test
