// Ranks for tests of NCCL's collectives: threads of this process, each with its own GPU, Context
// and communicator. Tests of CollectivesGpu need one GPU, those of CollectivesGpus two.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/nccl.h"
#include "gpu/compare.h"
#include "tensor/context.h"

namespace quern::test {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

class MemoryStore : public Store {
 public:
  MemoryStore() : Store("memory", 30s) {}
  void put(const std::string& key, const std::string& value, milliseconds /*limit*/) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> find(const std::string& key, milliseconds limit) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [&] { return values_.contains(key); })) return {};
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

class CollectivesGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    std::string reason;
    if (!IsSkipped() && !nccl_available(&reason)) GTEST_SKIP() << reason;
  }
};

class CollectivesGpus : public CollectivesGpu {
 protected:
  void SetUp() override {
    CollectivesGpu::SetUp();
    size = std::min(cuda::device_count(), 4);
    if (!IsSkipped() && size < 2) GTEST_SKIP() << "one GPU, the test needs two";
  }
  int size = 0;
};

// Where the host's threads wait for each other.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  void arrive() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++present_ == size_) {
      present_ = 0;
      ++round_;
      return changed_.notify_all();
    }
    if (!changed_.wait_for(lock, 60s, [&] { return round_ != round; })) {
      fail("test: a rank did not come to the meeting");
    }
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int present_ = 0;
  int64_t round_ = 0;
};

// One rank's view. In one process, a GPU's cudaMalloc or cudaFree may wait for a collective on
// another GPU: the ranks meet before and after both.
struct Rank {
  Communicator& communicator;
  Meeting& meeting;

  Communicator* operator->() const { return &communicator; }
  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }
  void meet() const { meeting.arrive(); }
};

using RankWork = std::function<void(const Rank& group)>;

// Runs `work` on every rank, and throws what one of them threw.
inline void on_gpus(int size, milliseconds limit, const RankWork& work) {
  const auto store = std::make_shared<MemoryStore>();
  Meeting meeting(size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Context context({DeviceType::cuda, rank});
        const ContextScope scope(context);
        const auto group = nccl_group(store, rank, size, limit);
        work({*group, meeting});
        context.synchronize();
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline cuda::Stream stream() {
  return Context::current().cuda_stream();
}

inline void finish(const Rank& group) {
  group->watch(stream());
  Context::current().synchronize();
  group->check();
}

}  // namespace quern::test
