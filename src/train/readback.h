// Losses and step states on their way to the host, without stopping the device: posted after a
// step, fetched while the next one runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/optimizer.h"
#include "tensor/tensor.h"

namespace quern {

struct StepResult {
  int64_t step = 0;  // the number given to post()
  double loss = 0.0;
  kernels::StepState state;
};

class Readback {
 public:
  Readback();
  ~Readback();
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  // Starts copying; at most two may be under way. loss: one FP32 element. state: u8, one StepState.
  void post(int64_t step, const Tensor& loss, const Tensor& state);
  std::optional<StepResult> fetch();  // the oldest posted and not fetched; waits for it
  int pending() const { return static_cast<int>(posted_ - fetched_); }

 private:
  struct Slot {
    float loss;
    kernels::StepState state;
  };
  static constexpr uint64_t kSlots = 2;

  Device device_;
  Slot* slots_ = nullptr;  // pinned on a GPU
  std::array<void*, kSlots> copied_{};
  std::array<int64_t, kSlots> steps_{};
  uint64_t posted_ = 0, fetched_ = 0;
};

}  // namespace quern
