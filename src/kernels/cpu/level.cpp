#include "kernels/cpu/level.h"

#ifdef QUERN_CPU_LEVELS
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>

#include "base/error.h"

#ifdef QUERN_CPU_LEVELS
// Written by cmake/cpu_levels.sh: the kernels' addresses in use, those of each level in turn, their
// number in one level, and the levels' names with a null pointer behind the last.
extern "C" {
extern void* quern_cpu_entries[];
extern void* const quern_cpu_targets[];
extern const long quern_cpu_functions;
extern const char* const quern_cpu_level_names[];
}
#endif

namespace quern::kernels::cpu {

#ifdef QUERN_CPU_LEVELS

namespace {

size_t in_use = 0;

// Linux gives a process the tile registers only when asked.
bool may_use_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

bool processor_has(const std::string& level) {
  __builtin_cpu_init();
  if (level == "avx2") return true;
  if (!__builtin_cpu_supports("x86-64-v4")) return false;
  if (level == "avx512") return true;
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  // On a Xeon with tiles these products took 1.3 to 1.8 times as long as FP32's.
  if (level == "avx512_bf16") return !__builtin_cpu_is("intel");
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         may_use_tiles();
}

}  // namespace

std::vector<std::string> levels() {
  std::vector<std::string> names;
  for (const char* const* name = quern_cpu_level_names; *name != nullptr; ++name) {
    if (processor_has(*name)) names.push_back(*name);
  }
  return names;
}

std::string level() {
  return quern_cpu_level_names[in_use];
}

void use_level(const std::string& name) {
  const std::vector<std::string> known = levels();
  QUERN_CHECK(std::ranges::count(known, name) > 0, "CPU kernels: this processor has no level ",
              name, ", its best one is ", known.back());
  in_use = 0;
  while (quern_cpu_level_names[in_use] != name) ++in_use;
  std::memcpy(quern_cpu_entries, quern_cpu_targets + in_use * quern_cpu_functions,
              quern_cpu_functions * sizeof(void*));
}

#else

std::vector<std::string> levels() {
  return {QUERN_CPU_LEVEL};
}

std::string level() {
  return levels().back();
}

void use_level(const std::string& name) {
  QUERN_CHECK(name == level(), "CPU kernels: this build has no level ", name, ", only ", level());
}

#endif

void use_best_level() {
  use_level(levels().back());
}

}  // namespace quern::kernels::cpu
