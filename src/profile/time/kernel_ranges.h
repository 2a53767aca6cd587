// Finds for what the GPU did which call caused it, and in which range that call was made.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "profile/time/profile.h"

namespace quern {

// The innermost range open at `time`, -1 when there was none. Ranges are ordered by their begin.
int32_t range_at(const std::vector<RangeEvent>& ranges, int64_t time);

// A call of CUDA's runtime or driver. One may be made inside another: the runtime calls the driver.
struct ApiRecord {
  std::string name;  // "cudaLaunchKernelExC_v11060"
  int64_t begin = 0, end = 0;
  uint64_t correlation = 0;
};

struct DeviceRecord {
  DeviceEvent event;        // without name and range
  std::string name;         // as DeviceEvent has it
  uint64_t graph_node = 0;  // of a captured graph; 0: none
};

// Adds to `profile` the device records of its steps, each with the range in which it was launched
// (a graph node's: in which it was captured, as `node_ranges` tells), and the calls of its steps
// that caused one, or that launch, copy, allocate or wait: the outermost of nested ones. `api` are
// of the thread that recorded the ranges. Returns how many device records are of no known call, or
// of a graph node that nobody saw captured.
int64_t attribute(Profile& profile, std::vector<ApiRecord> api, std::vector<DeviceRecord> device,
                  const std::unordered_map<uint64_t, int32_t>& node_ranges);

}  // namespace quern
