// Copies losses and step states to the host without stopping the device: posted after a step,
// fetched while the next one runs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

#include "kernels/optimizer.h"
#include "tensor/cuda_runtime.h"
#include "tensor/tensor.h"

namespace quern {

struct StepResult {
  int64_t step = 0;  // the number given to post()
  double loss = 0.0;
  std::optional<double> z_loss;
  bool stop = false;  // a rank asked to stop: TrainingStep::ask_to_stop
  double ms = 0.0;    // from the end of the previous step, or start_clock(), to this step's end
  kernels::StepState state;
};

class Readback {
 public:
  Readback();

  // Time before this call belongs to no step. No copy may be pending.
  void start_clock();
  // Starts a copy; at most two may be pending. loss, asking: one FP32 element; z_loss: the same, or
  // undefined. state: u8, one StepState.
  void post(int64_t step, const Tensor& loss, const Tensor& z_loss, const Tensor& asking,
            const Tensor& state);
  std::optional<StepResult> fetch();  // waits for the oldest pending one
  int pending() const { return static_cast<int>(posted_ - fetched_); }

 private:
  struct Slot {
    float loss, z_loss, asking;
    kernels::StepState state;
  };
  static constexpr uint64_t kSlots = 2;
  // The end of a step: an event on a GPU, since the host runs ahead of it, else the host's time.
  // One more than can be pending, for the step before the oldest pending one.
  struct Mark {
    cuda::Event event;
    std::chrono::steady_clock::time_point time;
  };
  static constexpr uint64_t kMarks = kSlots + 1;

  void mark(uint64_t turn);
  double ms_between(const Mark& from, const Mark& to) const;

  Device device_;
  cuda::HostArray<Slot> slots_;     // pinned on a GPU
  std::array<Mark, kMarks> marks_;  // step i is at (i + 1) % kMarks, its start before it
  std::array<int64_t, kSlots> steps_{};
  bool has_z_loss_ = false;
  uint64_t posted_ = 0, fetched_ = 0;
};

}  // namespace quern
