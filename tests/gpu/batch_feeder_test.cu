// The batch after this one is copied while the step computes: neither waits for the other.
#include "train/batch_feeder.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "device_buffer.h"
#include "kernels/cuda/launch.cuh"
#include "tensor/context.h"

namespace quern::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 64, kContext = 1 << 17;  // 64 MiB a batch: a millisecond or more to copy
constexpr int64_t kBytes = kRows * kContext * static_cast<int64_t>(sizeof(int32_t));
constexpr SamplerState kFirst{.seed = 1, .batch = 0};

// In pinned memory, which the GPU reads and writes.
struct Gate {
  int open = 0;       // by the host
  int timed_out = 0;  // by the GPU, which does not wait for a broken test forever
};

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void wait_for_gate(volatile Gate* gate) {
  constexpr uint64_t kLimit = 20'000'000'000;
  const uint64_t start = nanoseconds();
  while (gate->open == 0) {
    if (nanoseconds() - start < kLimit) continue;
    gate->timed_out = 1;
    return;
  }
}

// A step that takes until it is released.
class HeldStep {
 public:
  HeldStep() : gate_(static_cast<Gate*>(cuda::pinned_allocate(sizeof(Gate)))) { *gate_ = {}; }
  ~HeldStep() {
    release();
    cuda::synchronize_device();
    cuda::pinned_release(gate_);
  }
  HeldStep(const HeldStep&) = delete;
  HeldStep& operator=(const HeldStep&) = delete;

  void start(kernels::cuda::Stream stream) {
    kernels::cuda::launch(wait_for_gate, dim3(1), dim3(1), 0, stream, gate_);
  }
  void release() { const_cast<volatile Gate*>(gate_)->open = 1; }
  bool timed_out() const { return const_cast<volatile Gate*>(gate_)->timed_out != 0; }

 private:
  Gate* gate_;
};

class Event {
 public:
  Event() : event_(cuda::create_event(true)) {}
  ~Event() { cuda::destroy_event(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(void* stream) { cuda::record_event(event_, stream); }
  double ms_since(const Event& earlier) const {
    cuda::synchronize_event(event_);
    return cuda::elapsed_ms(earlier.event_, event_);
  }

 private:
  void* event_;
};

// Host memory that copies do not wait for.
class PinnedIntegers {
 public:
  explicit PinnedIntegers(int64_t bytes)
      : bytes_(bytes), data_(static_cast<int32_t*>(cuda::pinned_allocate(bytes))) {
    std::memset(data_, 0, static_cast<size_t>(bytes));
  }
  ~PinnedIntegers() { cuda::pinned_release(data_); }
  PinnedIntegers(const PinnedIntegers&) = delete;
  PinnedIntegers& operator=(const PinnedIntegers&) = delete;

  int32_t* get() { return data_; }
  bool equals(const std::vector<int32_t>& values) const {
    return std::memcmp(data_, values.data(), static_cast<size_t>(bytes_)) == 0;
  }

 private:
  int64_t bytes_;
  int32_t* data_;
};

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
  RandomSampler(source.size(), kContext, kFirst.seed).draw(index, starts);
  HostBatch batch;
  copy_windows(source, starts, kContext, batch.tokens.data(), batch.targets.data());
  return batch;
}

class BatchFeederGpu : public GpuTest {};

TEST_F(BatchFeederGpu, CopiesWhileTheStepComputes) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  void* const compute = context.cuda_stream().handle;
  void* const peek = cuda::create_stream();
  const TokenSource source = corpus();
  const HostBatch third = expected_batch(source, 3);
  PinnedIntegers seen(kBytes);
  HeldStep step1, step2;
  Event step1_ends, step2_may_start, copy_starts, copy_ends;

  BatchFeeder feeder(source, kRows, kContext, kFirst);
  feeder.next();
  const DeviceBatch odd = feeder.next();  // of batch 1; batch 3 comes to the same buffer
  cuda::synchronize_device();             // batch 2 is there

  // The host runs ahead of the GPU: while step 1 computes, it asks for batch 2 and puts step 2 on
  // the stream. Batch 3 sets out when step 1 is done with its buffer.
  step1.start(context.cuda_stream());
  step1_ends.record(compute);
  EXPECT_EQ(feeder.next().index, 2u);
  step2_may_start.record(compute);
  step2.start(context.cuda_stream());
  EXPECT_FALSE(step1.timed_out()) << "next() waited for the step";
  step1.release();
  const double between_steps = step2_may_start.ms_since(step1_ends);

  // Step 2 lasts until batch 3 has come.
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  bool came = false;
  while (!came && Clock::now() < deadline) {
    cuda::copy(seen.get(), odd.targets.raw_data(), kBytes, peek);
    cuda::synchronize(peek);
    came = seen.equals(third.targets);
  }
  cuda::copy(seen.get(), odd.tokens.raw_data(), kBytes, peek);
  cuda::synchronize(peek);
  EXPECT_TRUE(came && seen.equals(third.tokens)) << "the copy waited for the step";
  EXPECT_FALSE(step2.timed_out());
  step2.release();
  cuda::synchronize_device();

  // What the copy takes where the step does wait for it.
  copy_starts.record(compute);
  cuda::copy(odd.tokens.raw_data(), seen.get(), kBytes, compute);
  cuda::copy(odd.targets.raw_data(), seen.get(), kBytes, compute);
  copy_ends.record(compute);
  const double copy = copy_ends.ms_since(copy_starts);
  // Two events and a wait that is over take microseconds, a hundredth of the copy.
  EXPECT_LT(between_steps, copy / 4) << "the step waited for the copy";
  RecordProperty("between_steps_us", static_cast<int>(between_steps * 1e3));
  RecordProperty("copy_us", static_cast<int>(copy * 1e3));
  cuda::destroy_stream(peek);
}

}  // namespace
}  // namespace quern::test
