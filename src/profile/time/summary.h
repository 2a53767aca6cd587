// A profile added up: rows by op, kernel, phase, module or op and shapes, and what a step consists
// of in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profile/time/profile.h"
#include "profile/time/step_split.h"

namespace quern {

enum class GroupBy : uint8_t { op, kernel, phase, module, shape };

// Of a step: what all steps had, by their number.
struct ProfileRow {
  std::string name;    // "linear", "linear backward", a kernel's full name, a module's path
  std::string shapes;  // of the inputs; of GroupBy::shape only
  WorkKind kind = WorkKind::memory_bound;  // of a kernel
  double calls = 0.0;
  // Milliseconds; `self` without child ranges (of a module: without its sub-modules). Of a kernel,
  // the CPU's time is that of the calls which launched it.
  double cpu_total = 0.0, cpu_self = 0.0;
  double gpu_total = 0.0, gpu_self = 0.0;
};

// Rows in the order of their first event. A phase that holds no op is an op here: the optimizer.
// `self` adds up to all there is: what lies in no op (phase, module) has the row kOutside. Kernels:
// none where the profile has no times of kernels. A module's rows hold its parts (model.layers
// holds all layers), and its backward.
std::vector<ProfileRow> rows_by(const Profile& profile, GroupBy group);
inline constexpr const char* kOutside = "(outside)";

// "Of a step's 5.02 ms the GPU computes 4.60 (92 %): GEMM 61 %, ..." and advice where it is plain.
// Lines, each ending in a newline.
std::string summary_in_words(const Profile& profile);

}  // namespace quern
