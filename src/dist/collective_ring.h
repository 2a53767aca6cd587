// The latest collectives of one rank, for the message when one does not complete. Not safe for
// several threads.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/enum_names.h"

namespace quern {

// called: on a GPU, not yet on the stream. captured: in a graph, whose replays have no records.
enum class CollectiveState : uint8_t { called, captured, running, complete };
template <>
inline constexpr std::array kNamesOf<CollectiveState>{"not enqueued", "captured", "running",
                                                      "complete"};

class CollectiveRing {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kRecords = 16;

  struct Record {
    int64_t number = 0;     // of the collective on this rank, from 1; 0: no record
    const char* kind = "";  // "all_reduce"
    std::string what;       // "the gradients of block 3"
    int64_t bytes = 0;
    Clock::time_point begun;
    CollectiveState state = CollectiveState::called;
  };

  void add(const char* kind, const std::string& what, int64_t bytes, Clock::time_point now);
  Record& latest() { return records_[place_of(added_)]; }
  Record* find(int64_t number) {  // null: a later one has its place
    Record& record = records_[place_of(number)];
    return record.number == number ? &record : nullptr;
  }

  // "The latest collectives of this rank:" and a line for each, the oldest first: "#7 all_reduce of
  // the loss, 4 bytes, 2.1 s ago: running". Every line begins with a newline. Empty without any.
  std::string text(Clock::time_point now) const;

 private:
  static size_t place_of(int64_t number) { return static_cast<size_t>(number - 1) % kRecords; }

  int64_t added_ = 0;
  std::array<Record, kRecords> records_;
};

}  // namespace quern
