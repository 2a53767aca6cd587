#include "profile/time/recorder.h"

#include "base/error.h"
#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

constexpr size_t kRanges = size_t{1} << 16, kMemoryPoints = size_t{1} << 17;  // initial capacity

void add_note(std::string& note, const std::string& more) {
  if (!more.empty()) note += (note.empty() ? "" : "; ") + more;
}

}  // namespace

Recorder::Recorder(Profile& profile, const std::string& cupti)
    : RangeTracker(profile.names),
      profile_(profile),
      context_(Context::current()),
      allocator_(context_.allocator(context_.device())),
      step_(profile.names.id("step")) {
  const Device device = context_.device();
  profile_.on_gpu = device.is_cuda();
  profile_.device = profile_.on_gpu ? cuda::device_info(device.index).name : "CPU";
  profile_.ranges.reserve(kRanges);
  profile_.memory.reserve(kMemoryPoints);
  if (profile_.on_gpu) start_gpu(cupti);
  const MemoryStats stats = allocator_->stats();
  note_memory(stats.allocated, stats.reserved);
  previous_ = allocator_->set_observer(this);
}

void Recorder::start_gpu(const std::string& cupti) {
  std::string reason = "switched off";
  if (cupti != "off") {
    const auto open_range = [this] { return open_ranges_.empty() ? -1 : open_ranges_.back(); };
    cupti_ = Cupti::start(cupti, open_range, reason);
  }
  profile_.gpu_times = cupti_ ? GpuTimes::cupti : GpuTimes::events;
  if (cupti_) return;
  add_note(profile_.note,
           cat("CUPTI is missing (", reason, "): CUDA events time the ops, in every other step"));
  op_timer_ = std::make_unique<OpTimer>();
}

void Recorder::detach() {
  if (!attached_) return;
  attached_ = false;
  allocator_->set_observer(previous_);
}

Recorder::~Recorder() {
  detach();
}

void Recorder::begin_step() {
  context_.synchronize();
  profile_.steps.push_back({profile_clock(), 0});
  if (op_timer_) op_timer_->begin_step(profile_.steps.back().begin);
}

void Recorder::end_step() {
  if (op_timer_) op_timer_->close_step(step_);
  context_.synchronize();
  profile_.steps.back().end = profile_clock();
  if (op_timer_) op_timer_->end_step();
}

// Outermost ops and phases are timed: work of the step outside them has no time.
bool Recorder::is_timed(const Open& range) const {
  return op_timer_ && timed_op_ < 0 && range.kind != RangeKind::module;
}

void Recorder::on_begin(const Range& range) {
  RangeTracker::on_begin(range);
  if (!attached_) return;
  const Open& begun = open().back();
  const auto number = static_cast<int32_t>(profile_.ranges.size());
  if (is_timed(begun)) {
    op_timer_->begin(begun.kind, number, begun.name);
    if (begun.kind == RangeKind::op) timed_op_ = number;
  }
  const int32_t parent = open_ranges_.empty() ? -1 : open_ranges_.back();
  open_ranges_.push_back(number);
  profile_.ranges.push_back({.kind = begun.kind,
                             .backward = begun.kind == RangeKind::op && begun.place.backward,
                             .name = begun.name,
                             .phase = begun.place.phase,
                             .module = begun.place.module,
                             .parent = parent,
                             .begin = profile_clock()});
}

void Recorder::on_end() {
  const int64_t now = profile_clock();
  if (attached_ && !open_ranges_.empty()) {
    const int32_t number = open_ranges_.back();
    open_ranges_.pop_back();
    const Open& ended = open().back();
    RangeEvent& event = profile_.ranges[static_cast<size_t>(number)];
    event.end = now;
    event.shapes = ended.shapes;  // known only after the op began
    if (op_timer_ && (number == timed_op_ || ended.kind == RangeKind::phase)) {
      op_timer_->end(ended.kind);
    }
    if (number == timed_op_) timed_op_ = -1;
  }
  RangeTracker::on_end();
}

void Recorder::note_memory(int64_t allocated, int64_t reserved) {
  allocated_ += allocated;
  reserved_ += reserved;
  profile_.memory.push_back({profile_clock(), allocated_, reserved_});
}

void Recorder::on_allocate(const Allocation& allocation) {
  note_memory(allocation.bytes, 0);
  if (previous_) previous_->on_allocate(allocation);
}

void Recorder::on_release(const Allocation& allocation) {
  note_memory(-allocation.bytes, 0);
  if (previous_) previous_->on_release(allocation);
}

void Recorder::on_reserve(void* data, int64_t bytes) {
  note_memory(0, bytes);
  if (previous_) previous_->on_reserve(data, bytes);
}

void Recorder::on_unreserve(void* data, int64_t bytes) {
  note_memory(0, -bytes);
  if (previous_) previous_->on_unreserve(data, bytes);
}

void Recorder::on_out_of_memory(int64_t bytes, const char* name) {
  if (previous_) previous_->on_out_of_memory(bytes, name);
}

void Recorder::finish() {
  QUERN_CHECK(attached_ && open_ranges_.empty(), "profile: the recording ends ",
              attached_ ? "within a range" : "twice");
  context_.synchronize();
  detach();
  if (cupti_) add_note(profile_.note, cupti_->finish(profile_));
  cupti_.reset();
  if (op_timer_) profile_.device_events = op_timer_->finish();
  op_timer_.reset();
}

}  // namespace quern
