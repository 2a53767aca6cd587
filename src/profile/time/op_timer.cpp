#include "profile/time/op_timer.h"

#include <algorithm>
#include <cmath>

namespace quern {

namespace {

constexpr size_t kEvents = 1024;  // at first

DeviceEvent op_event(int32_t range, int32_t name) {
  return {.kind = DeviceEventKind::op, .name = name, .range = range};
}

bool same_ops(const PhaseWork& a, const PhaseWork& b) {
  return std::equal(
      a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
      [](const DeviceEvent& one, const DeviceEvent& other) { return one.name == other.name; });
}

}  // namespace

std::vector<DeviceEvent> place_ops(const PhaseWork& untimed, const PhaseWork& timed) {
  const int64_t length = timed.phase.end - timed.phase.begin;
  if (!same_ops(untimed, timed) || length <= 0) return {untimed.phase};
  const double stretch =
      static_cast<double>(untimed.phase.end - untimed.phase.begin) / static_cast<double>(length);
  const auto place = [&](int64_t time) {
    const auto since = static_cast<double>(time - timed.phase.begin);
    return untimed.phase.begin + std::llround(since * stretch);
  };
  std::vector<DeviceEvent> placed = untimed.ops;
  for (size_t i = 0; i < placed.size(); ++i) {
    placed[i].begin = place(timed.ops[i].begin);
    placed[i].end = place(timed.ops[i].end);
  }
  return placed;
}

OpTimer::OpTimer() : stream_(Context::current().cuda_stream()) {
  while (events_.size() < kEvents) events_.emplace_back(cuda::EventKind::timing);
}

size_t OpTimer::record() {
  if (recorded_ == events_.size()) events_.emplace_back(cuda::EventKind::timing);
  events_[recorded_].record(stream_);
  return recorded_++;
}

size_t OpTimer::mark() {
  return events_[recorded_ - 1].is_done() ? record() : recorded_ - 1;
}

void OpTimer::begin_step(int64_t now) {
  step_begin_ = now;
  in_step_ = true;
  record();
}

void OpTimer::begin(RangeKind kind, int32_t range, int32_t name) {
  if (!in_step_) return;
  Span span{op_event(range, name), 0, 0};
  if (kind == RangeKind::phase) {
    if (open_phases_++ > 0) return;
    const bool timed = (phases_.size() + step_) % 2 == 0;
    span.begin = mark();
    phases_.push_back({span, {}, timed});
    return;
  }
  const bool in_phase = open_phases_ > 0;
  if (!in_phase || phases_.back().timed) span.begin = mark();
  (in_phase ? phases_.back().ops : loose_).push_back(span);
}

void OpTimer::end(RangeKind kind) {
  if (!in_step_) return;
  if (kind == RangeKind::phase) {
    if (open_phases_ > 0 && --open_phases_ == 0) phases_.back().span.end = record();
  } else if (open_phases_ == 0) {
    if (!loose_.empty()) loose_.back().end = record();
  } else if (phases_.back().timed) {
    phases_.back().ops.back().end = record();
  }
}

DeviceEvent OpTimer::timed(const Span& span) const {
  const auto time = [&](size_t event) {
    const double ms = event == 0 ? 0.0 : events_[event].ms_since(events_[0]);
    return step_begin_ + std::llround(ms * 1e6);
  };
  DeviceEvent event = span.event;
  event.begin = time(span.begin);
  event.end = time(span.end);
  return event;
}

void OpTimer::keep(const Phase& phase, size_t ordinal) {
  PhaseWork work{timed(phase.span), {}};
  for (const Span& op : phase.ops) work.ops.push_back(phase.timed ? timed(op) : op.event);
  if (work.ops.empty()) {
    done_.push_back(work.phase);
  } else if (phase.timed) {
    done_.insert(done_.end(), work.ops.begin(), work.ops.end());
    patterns_[ordinal] = std::move(work);
  } else {
    untimed_.emplace(ordinal, std::move(work));
  }
}

void OpTimer::close_step(int32_t step) {
  in_step_ = false;
  if (phases_.empty() && loose_.empty()) loose_.push_back({op_event(-1, step), 0, record()});
}

void OpTimer::end_step() {
  for (size_t i = 0; i < phases_.size(); ++i) keep(phases_[i], i);
  for (const Span& op : loose_) done_.push_back(timed(op));
  recorded_ = 0;
  ++step_;
  phases_.clear();
  loose_.clear();
}

std::vector<DeviceEvent> OpTimer::finish() {
  for (const auto& [ordinal, work] : untimed_) {
    const auto pattern = patterns_.find(ordinal);
    const std::vector<DeviceEvent> placed =
        place_ops(work, pattern == patterns_.end() ? PhaseWork{} : pattern->second);
    done_.insert(done_.end(), placed.begin(), placed.end());
  }
  untimed_.clear();
  std::stable_sort(done_.begin(), done_.end(),
                   [](const DeviceEvent& a, const DeviceEvent& b) { return a.begin < b.begin; });
  return std::move(done_);
}

}  // namespace quern
