#include "io/cgroup.h"

#include <fstream>
#include <string>

#include "base/error.h"
#include "base/parse_number.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

// Without a limit v2 has "max", and v1 a number near 2^63.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::optional<int64_t> read_limit(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  in >> text;
  const std::optional<int64_t> bytes = parse_number<int64_t>(text);
  return bytes < kNoLimit ? bytes : std::nullopt;
}

// The limits from `root / group` up to `root`.
std::vector<CgroupMemory> limits_of(const fs::path& root, const std::string& group, bool v2) {
  std::vector<CgroupMemory> limits;
  for (fs::path path = fs::path("/") / group;; path = path.parent_path()) {
    const fs::path folder = root / path.relative_path();
    const fs::path file = folder / (v2 ? "memory.max" : "memory.limit_in_bytes");
    if (const std::optional<int64_t> bytes = read_limit(file)) {
      limits.push_back(
          {*bytes, v2 ? read_limit(folder / "memory.swap.max") : std::optional<int64_t>{}, file});
    }
    if (path == path.parent_path()) return limits;
  }
}

}  // namespace

std::vector<CgroupMemory> cgroup_memory(const fs::path& groups, const fs::path& own) {
  std::ifstream in(own);
  std::string line;
  while (std::getline(in, line)) {  // number:controllers:path; v2 is "0::path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = cat(",", line.substr(first + 1, second - first - 1), ",");
    const bool v2 = controllers == ",,", v1 = controllers.find(",memory,") != std::string::npos;
    if (!v1 && !v2) continue;
    const fs::path root = v2 ? groups : groups / "memory";
    if (auto found = limits_of(root, line.substr(second + 1), v2); !found.empty()) return found;
  }
  return {};
}

}  // namespace quern
