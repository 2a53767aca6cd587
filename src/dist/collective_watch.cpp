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

void CollectiveWatch::record(std::shared_ptr<WatchedEvent>& event, Stream stream,
                             Clock::time_point now) {
  if (!event || event == probe_) event = spare_ ? std::move(spare_) : make_event_();
  event->record(stream);
  if (probe_) return;
  probe_ = event;
  probed_since_ = now;
}

void CollectiveWatch::set_running(Stream stream, Clock::time_point now) {
  record(ends_[ring_.latest_place()], stream, now);
  ring_.latest().state = CollectiveState::running;
}

void CollectiveWatch::watch(Stream stream, Clock::time_point now) {
  record(watched_, stream, now);
}

// The latest one, as far as is known: collectives complete in the order of their numbers.
std::shared_ptr<WatchedEvent> CollectiveWatch::find_pending() {
  std::shared_ptr<WatchedEvent> last;
  int64_t last_number = 0;
  for (size_t i = 0; i < ends_.size(); ++i) {
    CollectiveRing::Record& record = ring_.at(i);
    if (record.state != CollectiveState::running) continue;
    if (ends_[i]->is_done()) {
      record.state = CollectiveState::complete;
    } else if (record.number > last_number) {
      last = ends_[i];
      last_number = record.number;
    }
  }
  if (watched_ && !watched_->is_done()) return watched_;
  return last;
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
  const CollectiveRing::Record* first = nullptr;
  for (size_t i = 0; i < ends_.size(); ++i) {
    const CollectiveRing::Record& record = ring_.at(i);
    if (record.state != CollectiveState::running) continue;
    if (!first || record.number < first->number) first = &record;
  }
  return first ? cat(first->kind, " of ", first->what) : "work of the stream";
}

}  // namespace quern
