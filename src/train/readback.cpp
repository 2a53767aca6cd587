#include "train/readback.h"

#include <cstring>

#include "base/error.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

Readback::Readback() : device_(Context::current().device()) {
  if (!device_.is_cuda()) {
    slots_ = new Slot[kSlots];
    return;
  }
  slots_ = static_cast<Slot*>(cuda::pinned_allocate(sizeof(Slot) * kSlots));
  for (void*& event : copied_) event = cuda::create_event(false);
}

Readback::~Readback() {
  if (!device_.is_cuda()) {
    delete[] slots_;
    return;
  }
  for (void* event : copied_) cuda::destroy_event(event);
  cuda::pinned_release(slots_);
}

void Readback::post(int64_t step, const Tensor& loss, const Tensor& state) {
  QUERN_CHECK(posted_ - fetched_ < kSlots, "readback: ", kSlots, " results are already under way");
  const uint64_t turn = posted_++ % kSlots;
  steps_[turn] = step;
  Slot& slot = slots_[turn];
  if (!device_.is_cuda()) {
    slot.loss = *loss.data<float>();
    std::memcpy(&slot.state, state.raw_data(), sizeof slot.state);
    return;
  }
  void* stream = Context::current().cuda_stream().handle;
  cuda::copy(&slot.loss, loss.raw_data(), sizeof slot.loss, stream);
  cuda::copy(&slot.state, state.raw_data(), sizeof slot.state, stream);
  cuda::record_event(copied_[turn], stream);
}

std::optional<StepResult> Readback::fetch() {
  if (posted_ == fetched_) return std::nullopt;
  const uint64_t turn = fetched_++ % kSlots;
  if (copied_[turn]) cuda::synchronize_event(copied_[turn]);
  return StepResult{steps_[turn], slots_[turn].loss, slots_[turn].state};
}

}  // namespace quern
