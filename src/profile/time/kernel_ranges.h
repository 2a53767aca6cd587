// Maps each GPU activity to the call that launched it, and to the range of that call.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "profile/time/profile.h"

namespace quern {

// The innermost range open at `time`; -1: none. Ranges are ordered by begin.
int32_t range_at(const std::vector<RangeEvent>& ranges, int64_t time);

// A call of CUDA's runtime or driver. Calls nest: the runtime calls the driver.
struct ApiRecord {
  std::string name;  // "cudaLaunchKernelExC_v11060"
  int64_t begin = 0, end = 0;
  uint64_t correlation = 0;
  bool other_thread = false;  // not the one that recorded the ranges
};

struct DeviceRecord {
  DeviceEvent event;        // without name and range
  std::string name;         // the text for DeviceEvent::name
  uint64_t graph_node = 0;  // in a captured graph; 0: none
};

// Adds the steps' device records and CUDA calls to `profile`. A record's range is that of its
// launch; a graph node has the range of its capture, from `node_ranges`. Calls are added if they
// caused a record, or if they launch, copy, allocate or wait; of nested calls only the outermost.
// Those of other threads count only if they caused a record: NCCL launches from a thread of its
// own, while the recording thread waits in the range. Returns the number of device records without
// a known call or graph node.
int64_t attribute(Profile& profile, std::vector<ApiRecord> api, std::vector<DeviceRecord> device,
                  const std::unordered_map<uint64_t, int32_t>& node_ranges);

}  // namespace quern
