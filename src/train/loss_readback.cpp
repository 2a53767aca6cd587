#include "train/loss_readback.h"

#include <cstring>

#include "base/error.h"
#include "tensor/context.h"

namespace quern {

Readback::Readback()
    : device_(Context::current().device()),
      slots_(cuda::host_array<Slot>(kSlots, device_.is_cuda())) {
  if (device_.is_cuda()) {
    for (Mark& mark : marks_) mark.event = cuda::Event(cuda::EventKind::timing);
  }
  start_clock();
}

void Readback::mark(uint64_t turn) {
  Mark& mark = marks_[turn % kMarks];
  mark.time = std::chrono::steady_clock::now();
  if (mark.event) mark.event.record(Context::current().cuda_stream());
}

double Readback::ms_between(const Mark& from, const Mark& to) const {
  if (from.event) return to.event.ms_since(from.event);
  return std::chrono::duration<double, std::milli>(to.time - from.time).count();
}

void Readback::start_clock() {
  QUERN_CHECK(pending() == 0, "readback: the clock is started with ", pending(),
              " results under way");
  mark(posted_);
}

void Readback::post(int64_t step, const Tensor& loss, const Tensor& z_loss, const Tensor& asking,
                    const Tensor& state) {
  QUERN_CHECK(posted_ - fetched_ < kSlots, "readback: ", kSlots, " results are already under way");
  const uint64_t turn = posted_ % kSlots;
  steps_[turn] = step;
  has_z_loss_ = z_loss.defined();
  Slot& slot = slots_[turn];
  const auto read = [&](auto& to, const Tensor& from) {
    if (!device_.is_cuda()) {
      std::memcpy(&to, from.raw_data(), sizeof to);
    } else {
      cuda::copy(&to, from.raw_data(), sizeof to, Context::current().cuda_stream());
    }
  };
  read(slot.loss, loss);
  if (has_z_loss_) read(slot.z_loss, z_loss);
  read(slot.asking, asking);
  read(slot.state, state);
  mark(++posted_);
}

std::optional<StepResult> Readback::fetch() {
  if (posted_ == fetched_) return std::nullopt;
  const uint64_t turn = fetched_ % kSlots;
  const Mark& before = marks_[fetched_ % kMarks];
  const Mark& end = marks_[++fetched_ % kMarks];
  if (end.event) end.event.synchronize();
  const Slot& slot = slots_[turn];
  const std::optional<double> z_loss = has_z_loss_ ? std::optional(slot.z_loss) : std::nullopt;
  return StepResult{steps_[turn], slot.loss, z_loss, slot.asking > 0.0f, ms_between(before, end),
                    slot.state};
}

}  // namespace quern
