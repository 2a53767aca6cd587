// The next batch is copied while the step computes: neither waits for the other.
#include "train/batch_feeder.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "gpu/device_buffer.h"
#include "gpu/held_step.cuh"
#include "tensor/context.h"

namespace quern::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 64, kContext = 1 << 17;  // 64 MiB a batch: a millisecond or more to copy
constexpr int64_t kBytes = kRows * kContext * static_cast<int64_t>(sizeof(int32_t));
constexpr SamplerState kFirst{.seed = 1};

TokenSource corpus() {
  std::vector<uint16_t> tokens(4 << 20);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i * 40503 >> 7);
  return {std::move(tokens), "test"};
}

struct HostBatch {
  std::vector<int32_t> tokens = std::vector<int32_t>(kRows * kContext), targets = tokens;
};

HostBatch expected_batch(const TokenSource& source, uint64_t index) {
  std::array<int64_t, kRows> starts;
  RandomSampler(source.size(), kContext, kFirst.seed).draw(index * kRows, starts);
  HostBatch batch;
  copy_windows(source, starts, kContext, batch.tokens.data(), batch.targets.data());
  return batch;
}

class BatchFeederGpu : public GpuTest {};

TEST_F(BatchFeederGpu, CopiesWhileTheStepComputes) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  const cuda::Stream compute = context.cuda_stream();
  const cuda::OwnedStream peek = cuda::OwnedStream::create();
  const TokenSource source = corpus();
  const HostBatch third = expected_batch(source, 3);
  const auto seen = cuda::host_array<int32_t>(kRows * kContext, true);  // copies wait for no stream
  const auto equal = [&](const std::vector<int32_t>& values) {
    return std::memcmp(seen.get(), values.data(), static_cast<size_t>(kBytes)) == 0;
  };
  HeldStep step1, step2;
  constexpr auto kTiming = cuda::EventKind::timing;
  cuda::Event step1_ends(kTiming), step2_may_start(kTiming), copy_starts(kTiming),
      copy_ends(kTiming);

  BatchFeeder feeder(source, kRows, kContext, kFirst);
  feeder.next();
  const DeviceBatch odd = feeder.next();  // of batch 1; batch 3 comes to the same buffer
  cuda::synchronize_device();             // batch 2 is there

  // The host runs ahead of the GPU: while step 1 computes, it requests batch 2 and puts step 2 on
  // the stream. The copy of batch 3 starts when step 1 is done with its buffer.
  step1.start(context.cuda_stream());
  step1_ends.record(compute);
  feeder.next();
  step2_may_start.record(compute);
  step2.start(context.cuda_stream());
  EXPECT_FALSE(step1.timed_out()) << "next() waited for the step";
  step1.release();
  step2_may_start.synchronize();
  const double between_steps = step2_may_start.ms_since(step1_ends);

  // Step 2 lasts until batch 3 has arrived.
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  bool came = false;
  while (!came && Clock::now() < deadline) {
    cuda::copy(seen.get(), odd.targets.raw_data(), kBytes, peek);
    cuda::synchronize(peek);
    came = equal(third.targets);
  }
  cuda::copy(seen.get(), odd.tokens.raw_data(), kBytes, peek);
  cuda::synchronize(peek);
  EXPECT_TRUE(came && equal(third.tokens)) << "the copy waited for the step";
  EXPECT_FALSE(step2.timed_out());
  step2.release();
  cuda::synchronize_device();

  // The time of the copy when the step does wait for it.
  copy_starts.record(compute);
  cuda::copy(odd.tokens.raw_data(), seen.get(), kBytes, compute);
  cuda::copy(odd.targets.raw_data(), seen.get(), kBytes, compute);
  copy_ends.record(compute);
  copy_ends.synchronize();
  const double copy = copy_ends.ms_since(copy_starts);
  // Two events and a finished wait take microseconds, a hundredth of the copy.
  EXPECT_LT(between_steps, copy / 4) << "the step waited for the copy";
  RecordProperty("between_steps_us", static_cast<int>(between_steps * 1e3));
  RecordProperty("copy_us", static_cast<int>(copy * 1e3));
}

}  // namespace
}  // namespace quern::test
