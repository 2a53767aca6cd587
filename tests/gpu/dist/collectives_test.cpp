// The collectives of NCCL.
#include <atomic>

#include "dist/rank_memory.h"
#include "gpu/dist/gpu_ranks.h"
#include "tensor/factory.h"
#include "tensor/graph.h"

namespace quern::test {
namespace {

// Runs `work` directly, then captured and replayed three times: `prepare` before and `verify` after
// each.
void repeat(const Rank& group, const std::function<void()>& prepare,
            const std::function<void()>& work, const std::function<void()>& verify) {
  const auto run = [&](const std::function<void()>& once) {
    prepare();
    once();
    finish(group);
    verify();
  };
  group.meet();
  run(work);
  group.meet();
  {
    const Graph graph(work);
    group.meet();
    for (int i = 0; i < 3; ++i) {
      SCOPED_TRACE(::testing::Message() << "replay " << i);
      run([&] { graph.launch(); });
    }
    group.meet();
  }
  group.meet();
}

template <class T>
std::vector<T> values_of(int rank, int64_t count) {
  return random_values<T>(count, static_cast<uint32_t>(1000 * rank + 7));
}

// The sums, in double.
std::vector<float> sums_of(int ranks, int64_t count) {
  std::vector<double> sums(static_cast<size_t>(count));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = values_of<float>(rank, count);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(values[i]);
  }
  return {sums.begin(), sums.end()};
}

template <class T>
std::vector<T> part_of(const std::vector<T>& values, int64_t begin, int64_t end) {
  return {values.begin() + begin, values.begin() + end};
}

// A sum of 4 values below 2 in magnitude is rounded at most 3 times, by up to 8 * 2^-24 each.
void expect_sums(const std::vector<float>& actual, const std::vector<float>& expected) {
  expect_close(actual, expected, 0.0, 2e-6);
}

const std::vector<int64_t> kCounts{0, 1, 63, 65, 128, 4096, 1000003};

void check_exchange(const Rank& group, int64_t count) {
  const RankSlices slices(count, group.size());
  const std::vector<float> own = values_of<float>(group.rank(), count);
  DeviceBuffer<float> data(own), received(slices.each * group.size());
  // Beyond the slices it stays as it was.
  std::vector<float> expected(static_cast<size_t>(received.size()), -1.0f);
  for (int peer = 0; peer < group.size(); ++peer) {
    const std::vector<float> values = values_of<float>(peer, count);
    std::copy(values.begin() + slices.begin(group.rank()),
              values.begin() + slices.end(group.rank()), expected.begin() + peer * slices.each);
  }
  const std::vector<float> before(expected.size(), -1.0f);
  repeat(
      group, [&] { received.upload(before); },
      [&] { group->exchange(received.get(), data.get(), slices, "the gradients", stream()); },
      [&] {
        expect_same_bits(received.download(), expected);
        expect_same_bits(data.download(), own);
        received.expect_guards_intact();
      });
}

template <class T>
void check_gather(const Rank& group, int64_t count) {
  const RankSlices slices(count, group.size());
  std::vector<T> own(static_cast<size_t>(count), static_cast<T>(-1.0f)), expected = own;
  for (int peer = 0; peer < group.size(); ++peer) {
    const std::vector<T> values = values_of<T>(peer, count);
    for (std::vector<T>* to : {&expected, peer == group.rank() ? &own : &expected}) {
      std::copy(values.begin() + slices.begin(peer), values.begin() + slices.end(peer),
                to->begin() + slices.begin(peer));
    }
  }
  DeviceBuffer<T> data(count);
  repeat(
      group, [&] { data.upload(own); },
      [&] { group->gather(data.get(), slices, sizeof(T), "the weights", stream()); },
      [&] {
        expect_same_bits(data.download(), expected);
        data.expect_guards_intact();
      });
  const int64_t begin = slices.begin(group.rank()), end = slices.end(group.rank());
  DeviceBuffer<T> from(part_of(own, begin, end));
  repeat(
      group, [&] { data.upload(std::vector<T>(own.size(), static_cast<T>(-1.0f))); },
      [&] { group->gather(data.get(), from.get(), slices, sizeof(T), "the weights", stream()); },
      [&] {
        expect_same_bits(data.download(), expected);
        data.expect_guards_intact();
        expect_same_bits(from.download(), part_of(own, begin, end));
      });
}

// (count) f32, uninitialized, in memory that can be registered with the communicator.
Tensor values_in_rank_pool(const Rank& group, int64_t count, const char* name) {
  const PoolScope memory(*Context::current().allocator(), rank_pool(&group.communicator));
  return Tensor::empty({count}, DType::f32, name);
}

// Registered memory, with a last slice that is shorter than the others.
void check_copies(const Rank& group) {
  const int64_t count = (int64_t{6} << 20) - 700;
  const RankSlices slices(count, group.size(), 512);
  const int64_t all = group.size() * slices.each;
  ASSERT_GT(all, count);
  const Tensor data = values_in_rank_pool(group, all, "data");
  const Tensor received = values_in_rank_pool(group, all, "received");
  group.meet();
  register_with(&group.communicator, {data, received});
  group.meet();
  const auto upload = [&](const Tensor& to, const std::vector<float>& values) {
    const Shape shape{std::ssize(values)};
    copy(to, Tensor::borrow(const_cast<float*>(values.data()), shape, DType::f32, kCpu));
  };
  const std::vector<float> own = values_of<float>(group.rank(), all);
  const std::vector<float> before(static_cast<size_t>(all), -1.0f);
  repeat(
      group, [&] { upload(data, own), upload(received, before); },
      [&] { group->exchange(received.data<float>(), data.data<float>(), slices, "x", stream()); },
      [&] {
        const std::vector<float> found = received.to_vector<float>();
        for (int peer = 0; peer < group.size(); ++peer) {
          const std::vector<float> values = values_of<float>(peer, all);
          const int64_t begin = slices.begin(group.rank()), end = slices.end(group.rank());
          expect_same_bits(part_of(found, peer * slices.each, peer * slices.each + end - begin),
                           part_of(values, begin, end));
        }
        expect_same_bits(data.to_vector<float>(), own);
      });
  std::vector<float> gathered;
  for (int peer = 0; peer < group.size(); ++peer) {
    const std::vector<float> values = values_of<float>(peer, all);
    gathered.insert(gathered.end(), values.begin() + peer * slices.each,
                    values.begin() + (peer + 1) * slices.each);
  }
  repeat(
      group, [&] { upload(data, own); },
      [&] { group->gather(data.raw_data(), slices.filled(), 4, "x", stream()); },
      [&] { expect_same_bits(data.to_vector<float>(), gathered); });
}

void check_broadcast(const Rank& group, int64_t bytes) {
  for (const int root : {0, group.size() - 1}) {
    DeviceBuffer<uint8_t> data(bytes);
    std::vector<uint8_t> expected(static_cast<size_t>(bytes));
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<uint8_t>(i * 37 + 11);
    const std::vector<uint8_t> before(expected.size(), 0xEE);
    repeat(
        group, [&] { data.upload(group.rank() == root ? expected : before); },
        [&] { group->broadcast(data.get(), bytes, root, "the state", stream()); },
        [&] {
          EXPECT_EQ(data.download(), expected);
          data.expect_guards_intact();
        });
    DeviceBuffer<uint8_t> from(group.rank() == root ? expected : before);
    repeat(
        group, [&] { data.upload(before); },
        [&] { group->broadcast(data.get(), from.get(), bytes, root, "the state", stream()); },
        [&] {
          EXPECT_EQ(data.download(), expected);
          data.expect_guards_intact();
        });
  }
}

void check_all_reduce(const Rank& group, int64_t count) {
  const std::vector<float> own = values_of<float>(group.rank(), count);
  const std::vector<float> expected = sums_of(group.size(), count);
  DeviceBuffer<float> data(count);
  repeat(
      group, [&] { data.upload(own); },
      [&] { group->all_reduce(data.get(), count, "the loss", stream()); },
      [&] {
        expect_sums(data.download(), expected);
        data.expect_guards_intact();
      });
  DeviceBuffer<float> from(own);
  repeat(
      group, [&] { data.upload(std::vector<float>(own.size(), -1.0f)); },
      [&] { group->all_reduce(data.get(), from.get(), count, "the loss", stream()); },
      [&] {
        expect_sums(data.download(), expected);
        data.expect_guards_intact();
        expect_same_bits(from.download(), own);
      });
}

void check_reduce_scatter(const Rank& group, int64_t count) {
  const RankSlices slices(count, group.size());
  const int64_t begin = slices.begin(group.rank()), end = slices.end(group.rank());
  const std::vector<float> own = values_of<float>(group.rank(), count);
  const std::vector<float> expected = part_of(sums_of(group.size(), count), begin, end);
  DeviceBuffer<float> data(count);
  repeat(
      group, [&] { data.upload(own); },
      [&] { group->reduce_scatter(data.get(), slices, "the gradients", stream()); },
      [&] {
        expect_sums(part_of(data.download(), begin, end), expected);
        data.expect_guards_intact();
      });
  DeviceBuffer<float> from(own), sum(end - begin);
  repeat(
      group, [&] { sum.upload(std::vector<float>(expected.size(), -1.0f)); },
      [&] { group->reduce_scatter(sum.get(), from.get(), slices, "the gradients", stream()); },
      [&] {
        expect_sums(sum.download(), expected);
        sum.expect_guards_intact();
        expect_same_bits(from.download(), own);
      });
}

void check_all(const Rank& group) {
  EXPECT_EQ(group->engine().substr(0, 5), "NCCL ");
  for (const int64_t count : kCounts) {
    SCOPED_TRACE(::testing::Message() << "rank " << group.rank() << ", count " << count);
    check_exchange(group, count);
    check_gather<float>(group, count);
    check_gather<bfloat16>(group, count);
    check_broadcast(group, count);
    check_all_reduce(group, count);
    check_reduce_scatter(group, count);
  }
}

TEST_F(CollectivesGpu, OneRankAlone) {
  on_gpus(1, 30s, check_all);
}

TEST_F(CollectivesGpus, EveryCollective) {
  on_gpus(size, 60s, check_all);
}

// Slices of all ranks are equal, which takes other calls of NCCL.
TEST_F(CollectivesGpus, EqualSlices) {
  on_gpus(size, 60s, [](const Rank& group) {
    for (const int64_t each : {64, 6400, 640000}) {
      const int64_t count = each * group.size();
      SCOPED_TRACE(::testing::Message() << "rank " << group.rank() << ", count " << count);
      check_exchange(group, count);
      check_gather<float>(group, count);
      check_gather<bfloat16>(group, count);
      check_reduce_scatter(group, count);
    }
  });
}

TEST_F(CollectivesGpus, RegisteredMemory) {
  on_gpus(size, 60s, check_copies);
}

// A part of a large buffer goes to a small one, as the gradients of small blocks do.
TEST_F(CollectivesGpus, SmallBuffersAreNotRegistered) {
  on_gpus(size, 20s, [](const Rank& group) {
    const int64_t each = 1 << 18;
    const RankSlices slices(group.size() * each, group.size());
    const Tensor data = values_in_rank_pool(group, int64_t{5} << 20, "data");
    const Tensor received = values_in_rank_pool(group, group.size() * each, "received");
    fill(data, group.rank() + 1.0);
    group.meet();
    register_with(&group.communicator, {data, received});
    group.meet();
    const auto exchange = [&] {
      group->exchange(received.data<float>(), data.data<float>(), slices, "the gradients",
                      stream());
    };
    repeat(
        group, [&] { fill(received, -1.0); }, exchange,
        [&] {
          const std::vector<float> found = received.to_vector<float>();
          for (int peer = 0; peer < group.size(); ++peer) {
            EXPECT_EQ(part_of(found, peer * each, (peer + 1) * each),
                      std::vector<float>(each, peer + 1.0f));
          }
        });
    group.meet();
    group->register_memory(data.raw_data(), data.bytes());
    group.meet();
    try {
      exchange();
      if (rank_pool(&group.communicator)) ADD_FAILURE() << "expected an error";
    } catch (const CommunicationError&) {
      throw;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("exchange of the gradients: registered memory on"),
                std::string::npos)
          << error.what();
    }
    finish(group);
    group.meet();
  });
}

// No rank passes before all have come.
TEST_F(CollectivesGpus, ABarrierHoldsEveryRank) {
  std::atomic<int> come = 0;
  on_gpus(size, 30s, [&](const Rank& group) {
    for (int round = 1; round <= 5; ++round) {
      std::this_thread::sleep_for(10ms * group.rank());
      ++come;
      group->barrier("the test");
      EXPECT_GE(come, round * group.size());
      group->barrier("the next round");
    }
  });
}

// The sums of several buffers in one graph, beside each other's memory.
TEST_F(CollectivesGpus, OneGraphHoldsSeveralCollectives) {
  on_gpus(size, 30s, [](const Rank& group) {
    constexpr int64_t kCount = 70000;
    const RankSlices slices(kCount, group.size());
    const std::vector<float> own = values_of<float>(group.rank(), kCount);
    const std::vector<float> sums = sums_of(group.size(), kCount);
    DeviceBuffer<float> scattered(kCount), reduced(kCount);
    repeat(
        group,
        [&] {
          scattered.upload(own);
          reduced.upload(own);
        },
        [&] {
          group->reduce_scatter(scattered.get(), slices, "the gradients", stream());
          group->all_reduce(reduced.get(), kCount, "the loss", stream());
          group->gather(scattered.get(), slices, sizeof(float), "the weights", stream());
        },
        [&] {
          expect_sums(scattered.download(), sums);
          expect_sums(reduced.download(), sums);
        });
  });
}

}  // namespace
}  // namespace quern::test
