// Watches the collectives of one rank that run on a GPU: detects one that hangs, and lists the
// latest for the message. Not safe for several threads.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/stream.h"
#include "dist/collective_ring.h"

namespace quern {

// A point in a stream's work: a CUDA event, or a test's fake.
class WatchedEvent {
 public:
  virtual ~WatchedEvent() = default;
  virtual void record(kernels::cuda::Stream stream) = 0;  // behind the work enqueued so far
  virtual bool is_done() const = 0;
};
using WatchedEventSource = std::function<std::shared_ptr<WatchedEvent>()>;
std::shared_ptr<WatchedEvent> cuda_watched_event();

class CollectiveWatch {
 public:
  using Clock = CollectiveRing::Clock;
  using Stream = kernels::cuda::Stream;

  CollectiveWatch(std::chrono::milliseconds limit, WatchedEventSource make_event)
      : limit_(limit), make_event_(std::move(make_event)) {}

  void set_limit(std::chrono::milliseconds limit) { limit_ = limit; }

  // A collective is called, and is then on its stream: captured, or running from now on.
  void add(const char* kind, const char* what, int64_t bytes, Clock::time_point now) {
    ring_.add(kind, what, bytes, now);
  }
  void set_captured() { ring_.latest().state = CollectiveState::captured; }
  void set_running(Stream stream, Clock::time_point now);
  // Also watches everything enqueued on `stream` so far.
  void watch(Stream stream, Clock::time_point now);

  // Whether some watched work has not been completed for longer than the limit. To be called every
  // now and then: time is counted from the call that first sees all earlier watched work complete.
  bool is_late(Clock::time_point now);
  bool is_idle();  // all watched work is complete

  // The oldest running collective: "all_reduce of the loss"; without one "work of the stream".
  std::string running() const;
  std::string text(Clock::time_point now) const { return ring_.text(now); }

 private:
  void record(std::shared_ptr<WatchedEvent>& event, Stream stream, Clock::time_point now);
  std::shared_ptr<WatchedEvent> find_pending();

  std::chrono::milliseconds limit_;
  WatchedEventSource make_event_;
  CollectiveRing ring_;
  std::array<std::shared_ptr<WatchedEvent>, CollectiveRing::kRecords> ends_;  // of running ones
  std::shared_ptr<WatchedEvent> watched_;                                     // recorded by watch()
  // The event that time is counted for. It is never recorded anew, so a host that runs ahead cannot
  // postpone it; when it is done, the latest pending event takes its place.
  std::shared_ptr<WatchedEvent> probe_;
  std::shared_ptr<WatchedEvent> spare_;  // a former probe
  Clock::time_point probed_since_;
};

}  // namespace quern
