#include "dist/thread_group.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/philox.h"
#include "dist/collective_call.h"
#include "dist/deadline.h"

namespace quern {

namespace {

constexpr uint32_t kMostDelay = 50;  // microseconds

struct Arrival {
  CollectiveCall call;
  void* data = nullptr;
};

// What the ranks share. A collective is two meetings of all ranks: at the first each rank brings
// its memory, which the others read until the second.
class Meeting {
 public:
  Meeting(int size, const ThreadGroupOptions& options)
      : options_(options), arrivals_(static_cast<size_t>(size)), order_(arrivals_.size()) {
    shuffle();
  }

  const ThreadGroupOptions& options() const { return options_; }
  void* data(int rank) const { return arrivals_[static_cast<size_t>(rank)].data; }

  // `rank` waits until all are here: at a collective's first meeting with its arrival. Returns the
  // reason when they do not meet.
  std::string meet(int rank, const Arrival* arrival);
  // Every rank that waits now or later gets this reason.
  void fail(const std::string& reason);
  void set_limit(std::chrono::milliseconds limit);

 private:
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition&& condition);
  void end_meeting(bool is_first);
  void compare_calls();
  void shuffle();

  ThreadGroupOptions options_;  // the limit may change
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Arrival> arrivals_;
  std::vector<int> order_;  // in which the ranks arrive at the next first meeting
  std::vector<bool> here_ = std::vector<bool>(arrivals_.size());
  size_t count_ = 0;         // of the ranks that are here
  uint64_t generation_ = 0;  // meetings that have ended
  std::string failure_;
};

// A seeded order of the ranks (Fisher and Yates).
void Meeting::shuffle() {
  std::iota(order_.begin(), order_.end(), 0);
  for (size_t i = order_.size(); i > 1 && options_.seed != 0; --i) {
    const uint64_t index = generation_ * order_.size() + i;
    const uint32_t other = kernels::philox_integer(~options_.seed, index, static_cast<uint32_t>(i));
    std::swap(order_[i - 1], order_[other]);
  }
}

// Until the condition holds, or there is a failure: at the latest that the limit has passed.
template <class Condition>
void Meeting::wait(std::unique_lock<std::mutex>& lock, Condition&& condition) {
  const auto is_over = [&] { return condition() || !failure_.empty(); };
  if (changed_.wait_until(lock, Deadline(options_.limit).end(), is_over)) return;
  std::string missing;
  for (size_t i = 0; i < here_.size(); ++i) {
    if (!here_[i]) missing += cat(missing.empty() ? "rank " : ", rank ", i);
  }
  failure_ = cat("no answer from ", missing, " within ", in_words(options_.limit));
  changed_.notify_all();
}

void Meeting::compare_calls() {
  const std::string first = arrivals_[0].call.text();
  for (size_t i = 1; i < arrivals_.size() && failure_.empty(); ++i) {
    const std::string other = arrivals_[i].call.text();
    if (other != first) failure_ = cat("rank 0 calls ", first, "; rank ", i, " calls ", other);
  }
}

void Meeting::end_meeting(bool is_first) {
  if (is_first) compare_calls();
  if (failure_.empty()) {
    ++generation_;
    count_ = 0;
    here_.assign(here_.size(), false);
    if (!is_first) shuffle();
  }
  changed_.notify_all();
}

std::string Meeting::meet(int rank, const Arrival* arrival) {
  std::unique_lock lock(mutex_);
  if (arrival && options_.seed != 0) wait(lock, [&] { return order_[count_] == rank; });
  if (!failure_.empty()) return failure_;
  if (arrival) arrivals_[static_cast<size_t>(rank)] = *arrival;
  here_[static_cast<size_t>(rank)] = true;
  const uint64_t current = generation_;
  if (++count_ == arrivals_.size()) {
    end_meeting(arrival != nullptr);
  } else {
    if (arrival && options_.seed != 0) changed_.notify_all();  // the next one's turn
    wait(lock, [&] { return generation_ != current; });
  }
  return generation_ != current ? std::string() : failure_;
}

void Meeting::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  changed_.notify_all();
}

void Meeting::set_limit(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  options_.limit = limit;
}

class ThreadRank final : public Communicator {
 public:
  ThreadRank(int rank, int size, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, size, meeting->options().limit), meeting_(std::move(meeting)) {}
  ~ThreadRank() override { meeting_->fail(cat("rank ", rank(), " is gone")); }

  void set_limit(std::chrono::milliseconds limit) override {
    Communicator::set_limit(limit);
    meeting_->set_limit(limit);
  }
  std::string engine() const override { return "threads"; }

  void exchange(float* received, const float* data, const RankSlices& slices, const char* what,
                Stream) override {
    run({{"exchange", what, slices.count}, const_cast<float*>(data)}, [&] {
      for (int p = 0; p < size(); ++p) {
        std::copy_n(floats(p) + slices.begin(rank()), slices.size(rank()),
                    received + p * slices.each);
      }
    });
  }

  void gather(void* data, const RankSlices& slices, int64_t width, const char* what,
              Stream) override {
    run({{"gather", what, slices.count, width}, data}, [&] {
      for (int p = 0; p < size(); ++p) {
        copy_bytes(data, p, slices.begin(p) * width, slices.size(p) * width);
      }
    });
  }

  void share(void* data, const std::vector<RankPiece>& pieces, const char* what, Stream) override {
    run({{"share", what, bytes_of(pieces), 1}, data}, [&] {
      for (const RankPiece& piece : pieces) copy_bytes(data, piece.owner, piece.begin, piece.bytes);
    });
  }

  void broadcast(void* data, int64_t bytes, int root, const char* what, Stream) override {
    QUERN_CHECK(root >= 0 && root < size(), "broadcast of ", what, ": root is ", root,
                ", expected a rank below ", size());
    run({{"broadcast", what, bytes, 1, root}, data}, [&] { copy_bytes(data, root, 0, bytes); });
  }

  void all_reduce(float* data, int64_t count, const char* what, Stream) override {
    std::vector<float> sums;
    run({{"all_reduce", what, count}, data}, [&] { sums = sum(0, count); });
    std::copy(sums.begin(), sums.end(), data);
  }

  void reduce_scatter(float* data, const RankSlices& slices, const char* what, Stream) override {
    std::vector<float> sums;
    run({{"reduce_scatter", what, slices.count}, data},
        [&] { sums = sum(slices.begin(rank()), slices.size(rank())); });
    std::fill_n(data, slices.count, std::numeric_limits<float>::quiet_NaN());
    std::copy(sums.begin(), sums.end(), data + slices.begin(rank()));
  }

  void barrier(const char* what) override {
    run({{"barrier", what}, nullptr}, [] {});
  }

  void abort() noexcept override {
    aborted_ = true;
    meeting_->fail(cat("rank ", rank(), " aborted"));
  }

 private:
  const float* floats(int rank) const { return static_cast<const float*>(meeting_->data(rank)); }

  void copy_bytes(void* data, int from, int64_t begin, int64_t bytes) const {
    if (from == rank() || bytes == 0) return;
    std::memcpy(static_cast<char*>(data) + begin,
                static_cast<const char*>(meeting_->data(from)) + begin, static_cast<size_t>(bytes));
  }

  // Over the ranks, in their order.
  std::vector<float> sum(int64_t begin, int64_t count) const {
    std::vector<float> sums(floats(0) + begin, floats(0) + begin + count);
    for (int p = 1; p < size(); ++p) {
      const float* const terms = floats(p) + begin;
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
    }
    return sums;
  }

  template <class Work>
  void run(const Arrival& arrival, Work&& work);
  void delay(int64_t stage) const;

  std::shared_ptr<Meeting> meeting_;
  int64_t number_ = 0;  // of the next collective
  std::atomic<bool> aborted_{false};
};

// Stage 0: before a collective; 1: within.
void ThreadRank::delay(int64_t stage) const {
  const uint64_t seed = meeting_->options().seed;
  if (seed == 0) return;
  const auto index = static_cast<uint64_t>((2 * number_ + stage) * size() + rank());
  const uint32_t drawn = kernels::philox_integer(seed, index, 2 * kMostDelay);
  const std::chrono::microseconds time(drawn > kMostDelay ? 0 : drawn);  // none in half the cases
  const auto end = Deadline::Clock::now() + time;  // a sleep would take 50 us longer
  while (Deadline::Clock::now() < end) std::this_thread::yield();
}

template <class Work>
void ThreadRank::run(const Arrival& arrival, Work&& work) {
  const auto check = [&](const std::string& reason) {
    if (reason.empty()) return;
    throw CommunicationError(cat("rank ", rank(), " of ", size(), ": ", arrival.call.title(), ": ",
                                 aborted_ ? "aborted" : reason));
  };
  const ThreadGroupOptions& options = meeting_->options();
  if (rank() == options.dying_rank && number_ >= options.dying_at) {
    meeting_->fail(cat("rank ", rank(), " is gone"));
    check(cat("the rank dies at its collective ", options.dying_at));
  }
  delay(0);
  check(meeting_->meet(rank(), &arrival));
  delay(1);
  work();
  check(meeting_->meet(rank(), nullptr));
  ++number_;
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_group(int size,
                                                        const ThreadGroupOptions& options) {
  QUERN_CHECK(size >= 1, "thread group: ", size, " ranks, expected at least 1");
  const auto meeting = std::make_shared<Meeting>(size, options);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<ThreadRank>(rank, size, meeting));
  }
  return ranks;
}

}  // namespace quern
