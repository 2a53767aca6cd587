// GPU activity, from the activity records of CUPTI, NVIDIA's library for profilers. It is loaded at
// first use, so that Quern also runs on machines without it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "profile/time/profile.h"

namespace quern {

// Records the calling thread's CUDA calls and all kernels, copies and sets, on the clock of
// profile_clock(). At most one instance at a time in a process.
class Cupti {
 public:
  // `library`: the path of libcupti.so; "auto" searches the system and the build's toolkit.
  // `open_range` returns the innermost open range (-1: none): it becomes the range of captured
  // kernels whenever the graph is replayed. Returns null when CUPTI is missing or refuses, with the
  // cause in `reason`.
  static std::unique_ptr<Cupti> start(const std::string& library,
                                      std::function<int32_t()> open_range, std::string& reason);
  ~Cupti();
  Cupti(const Cupti&) = delete;
  Cupti& operator=(const Cupti&) = delete;

  // Call when the device is idle. Ends the recording and adds the steps' calls and device events to
  // `profile`. Returns a note on missing data; "" when complete.
  std::string finish(Profile& profile);

 private:
  struct Library;
  explicit Cupti(std::function<int32_t()> open_range);

  std::string enable();  // the reason for a failure, else ""
  void disable() noexcept;
  void note_node(uint32_t what, const void* graph_data);

  std::unique_ptr<Library> library_;
  std::function<int32_t()> open_range_;
  void* subscriber_ = nullptr;
  bool owner_ = false;  // of the process-wide buffers
  bool enabled_ = false;
  bool system_threads_ = false;                        // records name threads by the system's ids
  std::unordered_map<uint64_t, int32_t> node_ranges_;  // graph nodes' ranges, by id
};

}  // namespace quern
