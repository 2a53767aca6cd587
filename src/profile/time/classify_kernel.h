// The kind of work that a kernel or an op does, found from its name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "profile/time/profile.h"

namespace quern {

enum class WorkKind : uint8_t {
  gemm,
  attention,
  memory_bound,
  copy,
  communication,  // between ranks
  other,          // unknown: CUDA events that time more than an op
};

template <>
inline constexpr std::array kNamesOf<WorkKind>{"GEMM",   "attention",     "memory-bound",
                                               "copies", "communication", "other"};

// By a kernel's demangled name. A kernel that is none of a matrix product, attention or NCCL's
// counts as memory-bound. Naive attention consists of products and memory-bound kernels.
WorkKind kernel_kind(std::string_view name);

WorkKind work_kind(const Profile& profile, const DeviceEvent& event);

// For ops without kernel times: on the CPU, and where CUDA events time whole ops.
WorkKind op_kind(std::string_view name);

// A demangled name without result type, this project's namespaces and arguments: "void
// quern::kernels::cuda::(anonymous namespace)::f<float>(float*)" -> "f<float>".
std::string short_kernel_name(std::string_view name);

}  // namespace quern
