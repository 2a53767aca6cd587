// Records a profile: the time of every range, the memory in use, and the GPU activity.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "profile/range_tracker.h"
#include "profile/time/cupti.h"
#include "profile/time/op_timer.h"
#include "profile/time/profile.h"
#include "tensor/allocator.h"

namespace quern {

// Attached to the current Context from construction to finish() or destruction. For use on one
// thread. Forwards to the allocator's previous observer.
class Recorder : public RangeTracker, private AllocationObserver {
 public:
  // Fills `profile`, which must be empty and outlive this. cupti: source of GPU times, "auto", the
  // path of libcupti.so, or "off". If CUPTI is off, missing or refuses, CUDA events time the ops,
  // and Profile::note says so.
  explicit Recorder(Profile& profile, const std::string& cupti = "auto");
  ~Recorder() override;

  // Call around each step. Both wait for the device, so that a step includes its device work.
  // Ranges are recorded outside of steps as well; CUDA calls and device events are not.
  void begin_step();
  void end_step();

  // Ends the recording and collects the GPU activity. Call once, outside of ranges and steps.
  void finish();

  void on_begin(const Range& range) override;
  void on_end() override;

 private:
  void on_allocate(const Allocation& allocation) override;
  void on_release(const Allocation& allocation) override;
  void on_reserve(void* data, int64_t bytes) override;
  void on_unreserve(void* data, int64_t bytes) override;
  void on_out_of_memory(int64_t bytes, const char* name) override;
  void note_memory(int64_t allocated, int64_t reserved);
  void start_gpu(const std::string& cupti);
  bool is_timed(const Open& range) const;
  void detach();

  Profile& profile_;
  const Context& context_;
  std::shared_ptr<Allocator> allocator_;
  AllocationObserver* previous_ = nullptr;
  bool attached_ = true;
  int64_t allocated_ = 0, reserved_ = 0;  // bytes now
  int32_t step_;                          // the name "step"
  std::vector<int32_t> open_ranges_;      // their indices in Profile::ranges, the outermost first
  int32_t timed_op_ = -1;                 // the open op that op_timer_ times
  std::unique_ptr<Cupti> cupti_;
  std::unique_ptr<OpTimer> op_timer_;
};

}  // namespace quern
