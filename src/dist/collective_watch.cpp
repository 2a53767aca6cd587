#include "dist/collective_watch.h"

#include <algorithm>

#include "base/round_up.h"

namespace quern {

void CollectiveWatch::enqueue(Stream stream, int64_t number, std::string text,
                              Clock::time_point now) {
  remove_completed(now);  // completed work is no part of the piece that begins now
  if (spare_.empty()) spare_.push_back(make_event_());
  spare_.back()->record(stream);
  if (pending_.empty()) progress_ = piece_since_ = now;
  pending_.push_back({std::move(spare_.back()), number, std::move(text)});
  spare_.pop_back();
}

void CollectiveWatch::set_running(Stream stream, Clock::time_point now) {
  CollectiveRing::Record& record = ring_.latest();
  enqueue(stream, record.number, cat(record.kind, " of ", record.what), now);
  record.state = CollectiveState::running;
}

void CollectiveWatch::watch(Stream stream, Clock::time_point now) {
  enqueue(stream, 0, kPiece, now);
}

void CollectiveWatch::remove_completed(Clock::time_point now) {
  while (!pending_.empty() && pending_.front().end->is_done()) {
    Work& work = pending_.front();
    if (work.number == 0) {
      pieces_[std::exchange(piece_, (piece_ + 1) % pieces_.size())] = now - piece_since_;
      piece_since_ = now;
    } else if (CollectiveRing::Record* const record = ring_.find(work.number)) {
      record->state = CollectiveState::complete;
    }
    spare_.push_back(std::move(work.end));
    pending_.pop_front();
    progress_ = now;
  }
}

bool CollectiveWatch::is_late(Clock::time_point now) {
  remove_completed(now);
  return !pending_.empty() && now - progress_ > allowed();
}

std::chrono::milliseconds CollectiveWatch::allowed() const {
  using std::chrono::milliseconds;
  const auto longest = std::chrono::ceil<milliseconds>(*std::ranges::max_element(pieces_));
  const auto tenth = std::max(limit_ / 10, milliseconds(1));
  return limit_ + milliseconds(round_up(longest.count(), tenth.count()));
}

bool CollectiveWatch::is_idle() const {
  return std::ranges::all_of(pending_, [](const Work& work) { return work.end->is_done(); });
}

std::string CollectiveWatch::running() const {
  return pending_.empty() ? "" : pending_.front().text;
}

}  // namespace quern
