#include "train/readback.h"

#include <cstring>

#include "base/error.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

Readback::Readback() : device_(Context::current().device()) {
  if (device_.is_cuda()) {
    slots_ = static_cast<Slot*>(cuda::pinned_allocate(sizeof(Slot) * kSlots));
    for (Mark& mark : marks_) mark.event = cuda::create_event(true);
  } else {
    slots_ = new Slot[kSlots];
  }
  start_clock();
}

Readback::~Readback() {
  if (!device_.is_cuda()) {
    delete[] slots_;
    return;
  }
  for (const Mark& mark : marks_) cuda::destroy_event(mark.event);
  cuda::pinned_release(slots_);
}

void Readback::mark(uint64_t turn) {
  Mark& mark = marks_[turn % kMarks];
  mark.time = std::chrono::steady_clock::now();
  if (mark.event) cuda::record_event(mark.event, Context::current().cuda_stream().handle);
}

double Readback::ms_between(const Mark& from, const Mark& to) const {
  if (from.event) return cuda::elapsed_ms(from.event, to.event);
  return std::chrono::duration<double, std::milli>(to.time - from.time).count();
}

void Readback::start_clock() {
  QUERN_CHECK(pending() == 0, "readback: the clock is started with ", pending(),
              " results under way");
  mark(posted_);
}

void Readback::post(int64_t step, const Tensor& loss, const Tensor& state) {
  QUERN_CHECK(posted_ - fetched_ < kSlots, "readback: ", kSlots, " results are already under way");
  const uint64_t turn = posted_ % kSlots;
  steps_[turn] = step;
  Slot& slot = slots_[turn];
  if (!device_.is_cuda()) {
    slot.loss = *loss.data<float>();
    std::memcpy(&slot.state, state.raw_data(), sizeof slot.state);
    return mark(++posted_);
  }
  void* stream = Context::current().cuda_stream().handle;
  cuda::copy(&slot.loss, loss.raw_data(), sizeof slot.loss, stream);
  cuda::copy(&slot.state, state.raw_data(), sizeof slot.state, stream);
  mark(++posted_);
}

std::optional<StepResult> Readback::fetch() {
  if (posted_ == fetched_) return std::nullopt;
  const uint64_t turn = fetched_ % kSlots;
  const Mark& before = marks_[fetched_ % kMarks];
  const Mark& end = marks_[++fetched_ % kMarks];
  if (end.event) cuda::synchronize_event(end.event);
  return StepResult{steps_[turn], slots_[turn].loss, ms_between(before, end), slots_[turn].state};
}

}  // namespace quern
