// A profile summed up: rows by op, kernel, phase, module or op and shapes, and the composition of a
// step in words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "profile/time/profile.h"
#include "profile/time/step_split.h"

namespace quern {

enum class GroupBy : uint8_t { phase, module, op, shape, kernel };

template <>
inline constexpr std::array kNamesOf<GroupBy>{"phase", "module", "op", "shape", "kernel"};

// Values of one step: the sum over all steps divided by their number.
struct ProfileRow {
  std::string name;    // "linear", "linear backward", a kernel's full name, a module's path
  std::string shapes;  // of the inputs; only in GroupBy::shape
  WorkKind kind = WorkKind::memory_bound;  // of a kernel
  double calls = 0.0;
  // Milliseconds; `self` excludes child ranges (of a module: its sub-modules). A kernel's CPU time
  // is that of the calls that launched it.
  double cpu_total = 0.0, cpu_self = 0.0;
  double gpu_total = 0.0, gpu_self = 0.0;
};

// Rows in the order of their first event. A phase without ops counts as an op: the optimizer. Time
// outside ops (phases, modules) has the row kOutside, so that `self` adds up to the whole. There
// are no kernel rows without kernel times. A module's row includes its parts (model.layers holds
// all layers) and its backward.
std::vector<ProfileRow> rows_by(const Profile& profile, GroupBy group);
inline constexpr const char* kOutside = "(outside)";

// "In a step's 5.02 ms the GPU computes 4.60 (92 %): GEMM 61 %, ..." and advice where it is clear.
// Each line ends in a newline.
std::string summary_in_words(const Profile& profile);

}  // namespace quern
