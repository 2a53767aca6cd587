// Memory used by a second stream, on real streams: the second stream is held up while the first one
// continues.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "gpu/device_buffer.h"
#include "gpu/held_step.cuh"
#include "tensor/factory.h"
#include "tensor/graph.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

constexpr int64_t kCount = 1 << 16;

class SideStream {
 public:
  Stream get() const { return stream_; }
  // Later work runs after all earlier work of the Context's stream.
  void follow_home() {
    cuda::Event event(cuda::EventKind::order);
    event.record(Context::current().cuda_stream());
    event.wait(stream_);
  }
  void copy(const Tensor& dst, const Tensor& src) {
    cuda::copy(dst.raw_data(), src.raw_data(), dst.bytes(), stream_);
  }

 private:
  cuda::OwnedStream stream_ = cuda::OwnedStream::create();
};

bool all_are(const Tensor& x, float value) {
  return x.to_vector<float>() == std::vector<float>(static_cast<size_t>(x.numel()), value);
}

class AllocatorStreamsGpu : public GpuTest {
 protected:
  // The side stream copies x, late; x goes, and the home stream writes 2 to memory of its size.
  // Returns what was copied.
  static Tensor copy_released_memory(bool record) {
    SideStream side;
    const Tensor copied = zeros({kCount});
    side.follow_home();
    side.copy(copied, full({kCount}, 3.0));  // loads what a copy needs
    cuda::synchronize_device();
    HeldStep held;
    Tensor x = full({kCount}, 1.0);
    const void* const place = x.raw_data();
    side.follow_home();
    held.start(side.get());
    side.copy(copied, x);
    if (record) x.record_use(side.get());
    x = {};
    const Tensor y = full({kCount}, 2.0);
    EXPECT_EQ(y.raw_data(), place) << "memory is used again at once";
    if (record) {  // time enough for the home stream to write, were it not to wait
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } else {
      Context::current().synchronize();
    }
    EXPECT_FALSE(held.timed_out());
    held.release();
    cuda::synchronize_device();
    EXPECT_TRUE(all_are(y, 2.0f));
    return copied;
  }
};

TEST_F(AllocatorStreamsGpu, WithoutARecordedUseTheStreamsRace) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  EXPECT_TRUE(all_are(copy_released_memory(false), 2.0f)) << "this test is to show the race";
}

TEST_F(AllocatorStreamsGpu, MemoryIsHandedOutBehindItsUseOnAnotherStream) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  EXPECT_TRUE(all_are(copy_released_memory(true), 1.0f));
}

TEST_F(AllocatorStreamsGpu, ACaptureMayForkAndJoin) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  SideStream side;
  const Tensor in = zeros({kCount}), copied = zeros({kCount}), last = zeros({kCount});
  const std::shared_ptr<MemoryPool> pool = context.allocator()->make_pool();
  const auto work = [&] {
    Tensor x = in.clone();
    const void* const place = x.raw_data();
    side.follow_home();
    side.copy(copied, x);
    x.record_use(side.get());
    x = {};
    const Tensor y = full({kCount}, 7.0);
    EXPECT_EQ(y.raw_data(), place);
    copy(last, y);
    // Joined by the end of the capture.
    const Tensor z = in.clone();
    side.follow_home();
    side.copy(copied, z);
    z.record_use(side.get());
  };
  const PoolScope scope_of_memory(*context.allocator(), pool);
  work();
  const Graph graph(work);
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    fill(in, value);
    graph.launch();
    EXPECT_TRUE(all_are(copied, value));
    EXPECT_TRUE(all_are(last, 7.0f));
  }
}

TEST_F(AllocatorStreamsGpu, AReplayWaitsForUsesOfItsMemory) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  SideStream side;
  HeldStep held;
  const Tensor copied = zeros({kCount}), last = zeros({kCount});
  const std::shared_ptr<MemoryPool> pool = context.allocator()->make_pool();
  const PoolScope scope_of_memory(*context.allocator(), pool);
  const void* place = nullptr;
  const auto work = [&] {
    const Tensor x = full({kCount}, 5.0);
    place = x.raw_data();
    copy(last, x);
  };
  work();
  const Graph graph(work);
  graph.launch();
  side.follow_home();
  side.copy(copied, last);
  cuda::synchronize_device();

  Tensor between = full({kCount}, 1.0);
  ASSERT_EQ(between.raw_data(), place);
  side.follow_home();
  held.start(side.get());
  side.copy(copied, between);
  between.record_use(side.get());
  between = {};
  graph.launch();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(held.timed_out());
  held.release();
  cuda::synchronize_device();
  EXPECT_TRUE(all_are(copied, 1.0f));
  EXPECT_TRUE(all_are(last, 5.0f));
}

TEST_F(AllocatorStreamsGpu, AFailedCaptureLeavesNoUses) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  SideStream side;
  const Tensor in = zeros({kCount}), copied = zeros({kCount});
  EXPECT_THROW(Graph([&] {
                 const Tensor x = in.clone();
                 side.follow_home();
                 side.copy(copied, x);
                 x.record_use(side.get());
                 fail("a mistake");
               }),
               Error);
  EXPECT_TRUE(all_are(full({kCount}, 4.0), 4.0f));
}

}  // namespace
}  // namespace quern::test
