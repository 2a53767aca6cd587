// Limits of the control group that this process runs in: of a container, a batch job or a service.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace quern {

struct CgroupMemory {
  int64_t bytes = 0;  // memory without swap
  std::optional<int64_t> swap_bytes;
  std::filesystem::path file;  // the limit's: /sys/fs/cgroup/.../memory.max
};

// The memory limits of the group and of its parents (cgroup v2's memory.max, or v1's
// memory.limit_in_bytes), from the group to the root; empty without one, or where none can be read.
std::vector<CgroupMemory> cgroup_memory(const std::filesystem::path& groups = "/sys/fs/cgroup",
                                        const std::filesystem::path& own = "/proc/self/cgroup");

}  // namespace quern
