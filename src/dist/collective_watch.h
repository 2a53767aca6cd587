// Watches the collectives of one rank that run on a GPU: detects one that hangs, and lists the
// latest for the message. Not safe for several threads.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/stream.h"
#include "dist/collective_ring.h"
#include "tensor/allocator.h"

namespace quern {

class CollectiveWatch {
 public:
  using Clock = CollectiveRing::Clock;
  using Stream = kernels::cuda::Stream;

  CollectiveWatch(std::chrono::milliseconds limit, EventSource make_event)
      : limit_(limit), make_event_(std::move(make_event)) {}

  void set_limit(std::chrono::milliseconds limit) { limit_ = limit; }

  // A collective is called, and is then on its stream: captured, or running from now on.
  void add(const char* kind, const char* what, int64_t bytes, Clock::time_point now) {
    ring_.add(kind, what, bytes, now);
  }
  void set_captured() { ring_.latest().state = CollectiveState::captured; }
  void set_running(Stream stream, Clock::time_point now);
  // Also watches everything enqueued on `stream` so far: the end of a piece of work, such as a
  // replay of a captured micro-batch, whose collectives are otherwise invisible.
  void watch(Stream stream, Clock::time_point now);

  // Whether watched work is pending, and none was completed for allowed(). Call it regularly: work
  // counts as completed when a call sees it.
  bool is_late(Clock::time_point now);
  // The limit plus the longest of the latest pieces, which is rounded up to tenths of the limit.
  std::chrono::milliseconds allowed() const;
  bool is_idle() const;  // all watched work is complete

  static constexpr char kPiece[] = "work of the stream";
  // The oldest running collective: "all_reduce of the loss"; kPiece for a piece; empty: none.
  std::string running() const;
  std::string text(Clock::time_point now) const { return ring_.text(now); }

 private:
  struct Work {
    std::unique_ptr<StreamEvent> end;
    int64_t number = 0;  // of the collective; 0: the end of a piece
    std::string text;    // "all_reduce of the loss"
  };

  void enqueue(Stream stream, int64_t number, std::string text, Clock::time_point now);
  void remove_completed(Clock::time_point now);

  std::chrono::milliseconds limit_;
  EventSource make_event_;
  CollectiveRing ring_;
  std::deque<Work> pending_;  // in the order of the calls
  std::vector<std::unique_ptr<StreamEvent>> spare_;
  Clock::time_point progress_;     // when work was last seen completed, or began
  Clock::time_point piece_since_;  // when the previous piece was completed, or this one began
  std::array<Clock::duration, 64> pieces_{};  // durations of the latest
  size_t piece_ = 0;                          // the place of the next
};

}  // namespace quern
