// What the GPU did, by the activity records of CUPTI, NVIDIA's library for profilers. It is loaded
// when it is first used, so that a machine without it runs Quern all the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "profile/time/profile.h"

namespace quern {

// Records the calling thread's CUDA calls and all kernels, copies and sets, on the clock of
// profile_clock(). One at a time in a process.
class Cupti {
 public:
  // `library`: the path of libcupti.so; "auto": where the system or the build's toolkit has it.
  // `open_range` tells the innermost range that is open now (-1: none): kernels that are captured
  // are known by it when the graph is replayed. Returns nothing when CUPTI is missing or refuses,
  // and `reason` says why.
  static std::unique_ptr<Cupti> start(const std::string& library,
                                      std::function<int32_t()> open_range, std::string& reason);
  ~Cupti();
  Cupti(const Cupti&) = delete;
  Cupti& operator=(const Cupti&) = delete;

  // Ends the recording, once the device is idle, and adds the steps' calls and device events to
  // `profile`. Returns what a reader must know of what is missing; empty: nothing is.
  std::string finish(Profile& profile);

 private:
  struct Library;
  explicit Cupti(std::function<int32_t()> open_range);

  std::string enable();  // why not; empty: it is enabled
  void disable() noexcept;
  void note_node(uint32_t what, const void* graph_data);

  std::unique_ptr<Library> library_;
  std::function<int32_t()> open_range_;
  void* subscriber_ = nullptr;
  bool owner_ = false;  // of the process's buffers
  bool enabled_ = false;
  bool system_threads_ = false;                        // records name threads as the system does
  std::unordered_map<uint64_t, int32_t> node_ranges_;  // graph nodes' ranges, by id
};

}  // namespace quern
