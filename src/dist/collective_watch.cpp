#include "dist/collective_watch.h"

#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

class CudaWatchedEvent : public WatchedEvent {
 public:
  void record(kernels::cuda::Stream stream) override { event_.record(stream); }
  bool is_done() const override { return event_.is_done(); }

 private:
  cuda::Event event_{cuda::EventKind::order};
};

}  // namespace

std::shared_ptr<WatchedEvent> cuda_watched_event() {
  return std::make_shared<CudaWatchedEvent>();
}

void CollectiveWatch::add(const char* kind, const char* what, int64_t bytes,
                          Clock::time_point now) {
  ++added_;
  Record& record = latest();
  record.number = added_;
  record.kind = kind;
  record.what = what;
  record.bytes = bytes;
  record.begun = now;
  record.state = CollectiveState::called;
}

void CollectiveWatch::record(std::shared_ptr<WatchedEvent>& event, Stream stream,
                             Clock::time_point now) {
  if (!event || event == probe_) event = spare_ ? std::move(spare_) : make_event_();
  event->record(stream);
  if (probe_) return;
  probe_ = event;
  probed_since_ = now;
}

void CollectiveWatch::set_running(Stream stream, Clock::time_point now) {
  record(latest().end, stream, now);
  latest().state = CollectiveState::running;
}

void CollectiveWatch::watch(Stream stream, Clock::time_point now) {
  record(watched_, stream, now);
}

// The latest one, as far as is known: collectives complete in the order of their numbers.
std::shared_ptr<WatchedEvent> CollectiveWatch::find_pending() {
  const Record* last = nullptr;
  for (Record& record : records_) {
    if (record.state != CollectiveState::running) continue;
    if (record.end->is_done()) {
      record.state = CollectiveState::complete;
    } else if (!last || record.number > last->number) {
      last = &record;
    }
  }
  if (watched_ && !watched_->is_done()) return watched_;
  return last ? last->end : nullptr;
}

bool CollectiveWatch::is_late(Clock::time_point now) {
  const std::shared_ptr<WatchedEvent> pending = find_pending();
  if (probe_ && !probe_->is_done()) return now - probed_since_ > limit_;
  if (probe_.use_count() == 1) spare_ = std::move(probe_);
  probe_ = pending;
  probed_since_ = now;
  return false;
}

bool CollectiveWatch::is_idle() {
  return !find_pending() && (!probe_ || probe_->is_done());
}

std::string CollectiveWatch::running() const {
  const Record* first = nullptr;
  for (const Record& record : records_) {
    if (record.state != CollectiveState::running) continue;
    if (!first || record.number < first->number) first = &record;
  }
  return first ? cat(first->kind, " of ", first->what) : "work of the stream";
}

std::string CollectiveWatch::text(Clock::time_point now) const {
  std::string lines;
  for (size_t i = 0; i < kRecords; ++i) {
    const Record& r = records_[(static_cast<size_t>(added_) + i) % kRecords];
    if (r.number == 0) continue;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - r.begun).count();
    lines += cat("\n  #", r.number, ' ', r.kind, " of ", r.what, ", ", r.bytes, " bytes, ",
                 ms / 1000, '.', ms % 1000 / 100, " s ago: ", name_of(r.state));
  }
  return lines;
}

}  // namespace quern
