#include "support/thread_group.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/philox.h"
#include "dist/collective_call.h"
#include "dist/deadline.h"
#include "dist/host_name.h"

namespace quern::testing_support {

namespace {

using SimulatedTime = std::chrono::nanoseconds;  // since the start
using Needs = std::function<bool(int)>;          // whether the data of a rank are received

// Of real time too: no test waits longer for a rank that hangs.
constexpr std::chrono::minutes kMostPatience{2};

bool same_calls(const CollectiveCall& a, const CollectiveCall& b) {
  return a.text() == b.text() && a.root == b.root;
}

// A rank's contribution to a collective: a copy of its data, which the others may read at any time.
struct Part {
  CollectiveCall call;
  std::vector<std::byte> data;
  SimulatedTime sent{};
};
using Parts = std::vector<std::optional<Part>>;  // of a collective, by rank

// A rank's wait for the parts of a collective.
struct Wait {
  int64_t number = 0;  // of the collective
  Needs needs;
  std::chrono::milliseconds limit{};
  SimulatedTime delay{}, transfer{};  // before its own part is sent; until the others' are received
};

// State that the ranks share.
class Meeting {
 public:
  Meeting(int size, const ThreadGroupOptions& options)
      : options_(options), ranks_(static_cast<size_t>(size)) {}

  const ThreadGroupOptions& options() const { return options_; }

  // Brings the part of `rank` and waits for those that it needs. Returns them, or the reason why
  // they do not come.
  std::pair<std::shared_ptr<const Parts>, std::string> meet(int rank, Part part, Wait wait);
  void leave(int rank);  // it is gone
  // Every rank that waits now in vain, or calls a collective later, gets this reason.
  void fail(const std::string& reason);

 private:
  enum class State { running, waiting, gone };
  struct Rank {
    State state = State::running;
    Wait wait;
    std::shared_ptr<Parts> parts;
    SimulatedTime now{};  // while it waits: the time at which its part is sent
    bool complete = false;
    std::condition_variable changed;
  };
  static constexpr SimulatedTime kNever = SimulatedTime::max();

  bool is_simulated() const { return options_.seed != 0; }
  void compare_calls(const Parts& parts, int rank, const CollectiveCall& call);
  int lost_rank(const Rank& rank) const;
  SimulatedTime received(const Rank& rank) const;
  SimulatedTime end_of(const Rank& rank) const;
  void end_wait(Rank& rank, SimulatedTime time);
  void take_turn();
  void wait_in_real_time(std::unique_lock<std::mutex>& lock, Rank& me);
  void fail_for_lack_of_time(SimulatedTime now, std::chrono::milliseconds limit);
  void wake_all();

  ThreadGroupOptions options_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<int64_t, std::pair<std::shared_ptr<Parts>, size_t>> collectives_;  // and who has left
  std::string failure_;
};

void Meeting::wake_all() {
  for (Rank& rank : ranks_) rank.changed.notify_one();
}

void Meeting::compare_calls(const Parts& parts, int rank, const CollectiveCall& call) {
  for (size_t i = 0; i < parts.size() && failure_.empty(); ++i) {
    if (!parts[i] || same_calls(parts[i]->call, call)) continue;
    const int other = static_cast<int>(i);
    const auto text = [](int r, const CollectiveCall& c) {
      return cat("rank ", r, " calls ", c.text());
    };
    const std::string mine = text(rank, call), theirs = text(other, parts[i]->call);
    failure_ = other < rank ? cat(theirs, "; ", mine) : cat(mine, "; ", theirs);
  }
}

// One that is gone without the part that `rank` waits for; -1: none.
int Meeting::lost_rank(const Rank& rank) const {
  for (int p = 0; p < static_cast<int>(ranks_.size()); ++p) {
    const auto i = static_cast<size_t>(p);
    if (ranks_[i].state == State::gone && !(*rank.parts)[i] && rank.wait.needs(p)) return p;
  }
  return -1;
}

// When `rank` has all the parts that it waits for.
SimulatedTime Meeting::received(const Rank& rank) const {
  SimulatedTime last = rank.now;
  for (size_t p = 0; p < ranks_.size(); ++p) {
    if (!rank.wait.needs(static_cast<int>(p))) continue;
    if (!(*rank.parts)[p]) return kNever;
    last = std::max(last, (*rank.parts)[p]->sent);
  }
  return last + rank.wait.transfer;
}

// When the wait of `rank` ends, as far as is known while all ranks wait.
SimulatedTime Meeting::end_of(const Rank& rank) const {
  const SimulatedTime limit = rank.now + rank.wait.limit, end = received(rank);
  if (end <= limit) return end;
  return failure_.empty() && lost_rank(rank) < 0 ? limit : rank.now;
}

// It has failed if the parts are not there by this time.
void Meeting::end_wait(Rank& rank, SimulatedTime time) {
  rank.complete = received(rank) <= time;
  const int lost = lost_rank(rank);
  if (!rank.complete && failure_.empty()) {
    if (lost >= 0) failure_ = cat("rank ", lost, " is gone");
    if (lost < 0) fail_for_lack_of_time(time, rank.wait.limit);
  }
  rank.state = State::running;
}

// Names the ranks that do not wait themselves.
void Meeting::fail_for_lack_of_time(SimulatedTime now, std::chrono::milliseconds limit) {
  std::string missing;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const bool waits = ranks_[i].state == State::waiting && ranks_[i].now <= now;
    if (!waits) missing += cat(missing.empty() ? "rank " : ", rank ", i);
  }
  failure_ = cat("no answer from ", missing, " within ", in_words(limit));
}

// While no rank runs: the one whose wait ends first runs.
void Meeting::take_turn() {
  Rank* next = nullptr;
  SimulatedTime first = kNever;
  for (Rank& rank : ranks_) {
    if (rank.state == State::running) return;
    if (rank.state == State::gone) continue;
    const SimulatedTime end = end_of(rank);
    if (next != nullptr && end >= first) continue;
    next = &rank;
    first = end;
  }
  if (next == nullptr) return;
  end_wait(*next, first);
  next->now = first;
  next->changed.notify_one();
}

void Meeting::wait_in_real_time(std::unique_lock<std::mutex>& lock, Rank& me) {
  const auto end = Deadline(me.wait.limit).end();
  if (is_simulated()) {
    take_turn();
    // A rank that hangs in earnest takes no turn.
    if (me.changed.wait_until(lock, end, [&] { return me.state == State::running; })) return;
  } else {
    wake_all();
    me.changed.wait_until(lock, end, [&] {
      return received(me) != kNever || !failure_.empty() || lost_rank(me) >= 0;
    });
  }
  end_wait(me, me.now + me.wait.limit);
  if (!me.complete) wake_all();
}

std::pair<std::shared_ptr<const Parts>, std::string> Meeting::meet(int rank, Part part, Wait wait) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) return {nullptr, failure_};
  Rank& me = ranks_[static_cast<size_t>(rank)];
  auto& [parts, left] = collectives_[wait.number];
  if (!parts) parts = std::make_shared<Parts>(ranks_.size());
  compare_calls(*parts, rank, part.call);
  me.now += wait.delay;
  part.sent = me.now;
  if (failure_.empty()) (*parts)[static_cast<size_t>(rank)] = std::move(part);
  me.parts = parts;
  me.wait = std::move(wait);
  me.state = State::waiting;
  wait_in_real_time(lock, me);
  if (!me.complete) return {nullptr, failure_};
  if (++left == ranks_.size()) collectives_.erase(me.wait.number);
  return {std::exchange(me.parts, nullptr), std::string()};
}

void Meeting::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(rank)].state = State::gone;
  if (is_simulated()) return take_turn();
  wake_all();
}

void Meeting::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  wake_all();
}

class ThreadRank final : public Communicator {
 public:
  ThreadRank(int rank, int size, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, size, meeting->options().limit), meeting_(std::move(meeting)) {}
  ~ThreadRank() override { meeting_->leave(rank()); }

  std::string engine() const override { return "threads"; }

  void exchange(float* received, const float* data, const RankSlices& slices, const char* what,
                Stream) override {
    const bool receives = slices.size(rank()) > 0;
    run(
        {"exchange", what, slices.count}, data, [&](int) { return receives; },
        [&] {
          for (int p = 0; p < size(); ++p) {
            copy_part(received + p * slices.each, p, slices.begin(rank()) * kFloat,
                      slices.size(rank()) * kFloat);
          }
        });
  }

  void gather(void* data, const void* own, const RankSlices& slices, int64_t width,
              const char* what, Stream) override {
    copy_unless_same(static_cast<std::byte*>(data) + slices.begin(rank()) * width, own,
                     slices.size(rank()) * width);
    run(
        {"gather", what, slices.count, width}, data, [&](int p) { return slices.size(p) > 0; },
        [&] {
          for (int p = 0; p < size(); ++p) {
            place_part(data, p, slices.begin(p) * width, slices.size(p) * width);
          }
        });
  }

  void share(void* data, const std::vector<RankPiece>& pieces, const char* what, Stream) override {
    const auto needs = [&](int p) {
      return std::any_of(pieces.begin(), pieces.end(), [&](const auto& x) { return x.owner == p; });
    };
    int64_t end = 0;
    for (const RankPiece& piece : pieces) end = std::max(end, piece.begin + piece.bytes);
    run(
        {"share", what, bytes_of(pieces), 1}, data, needs,
        [&] {
          for (const RankPiece& piece : pieces) {
            place_part(data, piece.owner, piece.begin, piece.bytes);
          }
        },
        end);
  }

  void broadcast(void* to, const void* from, int64_t bytes, int root, const char* what,
                 Stream) override {
    QUERN_CHECK(root >= 0 && root < size(), "broadcast of ", what, ": root is ", root,
                ", expected a rank below ", size());
    if (rank() == root) copy_unless_same(to, from, bytes);
    run(
        {"broadcast", what, bytes, 1, root}, to, [&](int p) { return p == root; },
        [&] { place_part(to, root, 0, bytes); });
  }

  void all_reduce(float* to, const float* from, int64_t count, const char* what, Stream) override {
    run({"all_reduce", what, count}, from, kAll, [&] { sum(to, 0, count); });
  }

  void reduce_scatter(float* own, const float* data, const RankSlices& slices, const char* what,
                      Stream) override {
    run({"reduce_scatter", what, slices.count}, data, kAll,
        [&] { sum(own, slices.begin(rank()), slices.size(rank())); });
  }

  void barrier(const char* what) override {
    run({"barrier", what}, nullptr, kAll, [] {});
  }

  void abort(const std::string& reason) noexcept override {
    aborted_ = true;
    meeting_->fail(failure_text(cat("rank ", rank(), " of ", size()), reason));
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  static constexpr auto kAll = [](int) { return true; };

  const std::byte* part(int rank) const {
    return (*parts_)[static_cast<size_t>(rank)]->data.data();
  }

  void copy_part(void* to, int from, int64_t begin, int64_t bytes) const {
    if (bytes > 0) std::memcpy(to, part(from) + begin, static_cast<size_t>(bytes));
  }
  void place_part(void* data, int from, int64_t begin, int64_t bytes) const {
    if (from != rank()) copy_part(static_cast<std::byte*>(data) + begin, from, begin, bytes);
  }

  // Over the ranks, in their order, of the elements from `begin`.
  void sum(float* to, int64_t begin, int64_t count) const {
    std::vector<float> term(static_cast<size_t>(count));
    copy_part(to, 0, begin * kFloat, count * kFloat);
    for (int p = 1; p < size(); ++p) {
      copy_part(term.data(), p, begin * kFloat, count * kFloat);
      for (size_t i = 0; i < term.size(); ++i) to[i] += term[i];
    }
  }

  // bytes: of the data; -1: as the call says.
  template <class Work>
  void run(const CollectiveCall& call, const void* data, const Needs& needs, const Work& work,
           int64_t bytes = -1);
  SimulatedTime delay(int64_t stage) const;
  void check(const CollectiveCall& call, const std::string& reason) const;

  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<const Parts> parts_;  // of the current collective
  int64_t number_ = 0;                  // of the next collective
  std::atomic<bool> aborted_{false};
};

// Stage 0: before a collective; 1: within. Half of them are almost none, and some are long, but far
// from the limit. They are seldom equal, so ranks have an order.
SimulatedTime ThreadRank::delay(int64_t stage) const {
  const uint64_t seed = meeting_->options().seed;
  if (seed == 0) return {};
  const auto index = static_cast<uint64_t>((2 * number_ + stage) * size() + rank());
  const kernels::PhiloxBlock drawn = kernels::philox_block(seed, index);
  const uint32_t kind = drawn.word[0] % 64;
  return SimulatedTime(drawn.word[1] % (kind == 0 ? 10'000'000 : kind < 32 ? 1000 : 50'000));
}

void ThreadRank::check(const CollectiveCall& call, const std::string& reason) const {
  if (reason.empty() && !aborted_) return;
  throw CommunicationError(cat("rank ", rank(), " of ", size(), ": ", call.title(), ": ",
                               aborted_ ? "aborted" : reason));
}

template <class Work>
void ThreadRank::run(const CollectiveCall& call, const void* data, const Needs& needs,
                     const Work& work, int64_t bytes) {
  const ThreadGroupOptions& options = meeting_->options();
  const bool dies = rank() == options.dying_rank && number_ >= options.dying_at;
  if (dies && options.silence == 0.0) {
    meeting_->leave(rank());
    check(call, cat("the rank dies at its collective ", options.dying_at));
  }
  Wait wait{number_, options.eager ? needs : Needs(kAll),
            std::max(limit(), std::min<std::chrono::milliseconds>(longest(), kMostPatience)),
            delay(0), delay(1)};
  if (dies && number_ == options.dying_at) {
    wait.delay += std::chrono::duration_cast<SimulatedTime>(options.silence * limit());
  }
  const auto* const begin = static_cast<const std::byte*>(data);
  const int64_t size = begin == nullptr ? 0 : bytes < 0 ? call.count * call.width : bytes;
  auto [parts, reason] = meeting_->meet(rank(), {call, {begin, begin + size}}, std::move(wait));
  check(call, reason);
  parts_ = std::move(parts);
  work();
  parts_ = nullptr;
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

}  // namespace quern::testing_support
