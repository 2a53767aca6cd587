// What NCCL's group does when a rank is absent, slow, or has an error.
#include "gpu/dist/gpu_ranks.h"
#include "tensor/graph.h"

namespace quern::test {
namespace {

// Throws unless `work` throws a CommunicationError with every part in its message.
void expect_failure(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
  } catch (const CommunicationError& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    return;
  }
  FAIL() << "expected a CommunicationError with '" << parts.front() << "'";
}

TEST_F(CollectivesGpu, ARankThatNeverComesIsAnError) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  const auto store = std::make_shared<MemoryStore>();
  const auto begin = std::chrono::steady_clock::now();
  expect_failure([&] { nccl_group(store, 0, 2, 2s); },
                 {"rank 0 of 2 on ", ": NCCL start of the group: ", "no answer within 2 s"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);  // NCCL's own abort takes a while
}

TEST_F(CollectivesGpu, AReportedFailureEndsTheStart) {
  Context context({DeviceType::cuda, 0});
  const ContextScope scope(context);
  const auto store = std::make_shared<MemoryStore>();
  std::thread other([&] {
    std::this_thread::sleep_for(1s);
    store->report_failure("rank 1 of 2 has failed: no memory is left");
  });
  const auto begin = std::chrono::steady_clock::now();
  expect_failure([&] { nccl_group(store, 0, 2, 60s); },
                 {"rank 0 of 2 on ", "rank 1 of 2 has failed: no memory is left"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  other.join();
}

TEST_F(CollectivesGpu, AnAbortedGroupFails) {
  on_gpus(1, 30s, [](const Rank& group) {
    DeviceBuffer<float> data(std::vector<float>(10, 1.0f));
    group->all_reduce(data.get(), 10, "the loss", stream());
    Context::current().synchronize();
    group->abort("the test ends");
    group->abort("the test ends");
    const auto sum = [&] { group->all_reduce(data.get(), 10, "the loss", stream()); };
    expect_failure(sum, {"rank 0 of 1 on ", ": NCCL: aborted"});
    expect_failure([&] { group->check(); }, {"aborted"});
    expect_failure([&] { group->barrier("the end"); }, {"aborted"});
    std::this_thread::sleep_for(200ms);  // the watchdog has aborted NCCL's communicator
    expect_failure(sum, {"aborted"});
  });
}

// The last rank does not call the collective. Returns when the first one has failed, as it must.
void check_absence(int size, bool connected, bool captured, const std::string& expected) {
  std::mutex mutex;
  std::condition_variable changed;
  int failed = 0;
  on_gpus(size, 10s, [&](const Rank& group) {
    DeviceBuffer<float> data(std::vector<float>(1000, 1.0f));
    const auto sum = [&] { group->all_reduce(data.get(), 1000, "the loss", stream()); };
    group.meet();
    if (connected) {
      sum();
      finish(group);
    }
    std::unique_ptr<Graph> graph;
    if (captured) graph = std::make_unique<Graph>(sum);
    group.meet();
    if (group.rank() < size - 1) {
      expect_failure(
          [&] {
            captured ? graph->launch() : sum();
            finish(group);
          },
          {cat("rank ", group.rank(), " of ", size, " on "), cat(": NCCL ", expected),
           cat("rank ", size - 1, " of ", size, " on "), "does not wait in it, or came later"});
      const std::lock_guard lock(mutex);
      ++failed;
      changed.notify_all();
    } else {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, 60s, [&] { return failed == size - 1; }));
    }
  });
}

TEST_F(CollectivesGpus, AnAbsentRankIsAnErrorAtTheFirstCollective) {
  check_absence(size, false, false, "all_reduce of the loss: no");
}

TEST_F(CollectivesGpus, AnAbsentRankIsAnErrorAtALaterCollective) {
  check_absence(size, true, false, "all_reduce of the loss: not complete within 11 s: ");
}

TEST_F(CollectivesGpus, AnAbsentRankIsAnErrorInAReplay) {
  check_absence(size, true, true, "all_reduce of the loss: not complete within 11 s: ");
}

// The others wait in a captured collective, and hear of it long before the limit.
TEST_F(CollectivesGpus, TheErrorOfOneRankReachesTheOthers) {
  on_gpus(size, 30s, [&](const Rank& group) {
    DeviceBuffer<float> data(std::vector<float>(1000, 1.0f));
    const auto sum = [&] { group->all_reduce(data.get(), 1000, "the loss", stream()); };
    sum();
    finish(group);
    const Graph graph(sum);
    group.meet();
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == size - 1) {
      std::this_thread::sleep_for(1s);  // until the others wait
      group->abort("out of memory\nlines below");
    } else {
      expect_failure(
          [&] {
            graph.launch();
            finish(group);
          },
          {cat("rank ", group.rank(), " of ", size, " on "), ": NCCL all_reduce of the loss: rank ",
           cat("rank ", size - 1, " of ", size, " on "), " has failed: out of memory"});
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    group.meet();
  });
}

// Work that runs for longer than the period of the watchdog, but not than the limit.
TEST_F(CollectivesGpus, ASlowRankIsNoError) {
  on_gpus(size, 10s, [](const Rank& group) {
    DeviceBuffer<float> data(std::vector<float>(1000, 1.0f));
    group.meet();
    for (int i = 0; i < 3; ++i) {
      if (group.rank() == i % group.size()) std::this_thread::sleep_for(300ms);
      group->all_reduce(data.get(), 1000, "the loss", stream());
    }
    finish(group);
    const auto expected = static_cast<float>(std::pow(group.size(), 3));
    EXPECT_EQ(data.download(), std::vector<float>(1000, expected));
    group.meet();
  });
}

}  // namespace
}  // namespace quern::test
