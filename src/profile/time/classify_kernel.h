// What kind of work a kernel or an op is, told by its name.
#pragma once

#include <array>
#include <cstddef>
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
  other,  // not known: CUDA events that time more than an op
};
inline constexpr size_t kWorkKinds = 5;
inline constexpr std::array kAllWork{WorkKind::gemm, WorkKind::attention, WorkKind::memory_bound,
                                     WorkKind::copy, WorkKind::other};

const char* name_of(WorkKind kind);  // "GEMM", "attention", "memory-bound", "copies", "other"

// Of a kernel by its demangled name. What is no matrix product and no attention is taken for
// memory-bound; naive attention is made of both.
WorkKind kernel_kind(std::string_view name);

WorkKind work_kind(const Profile& profile, const DeviceEvent& event);

// Of an op where kernels are not known: on the CPU, and where CUDA events time whole ops.
WorkKind op_kind(std::string_view name);

// A demangled name without what hides it: the result's type, this project's namespaces and the
// arguments. "void quern::kernels::cuda::(anonymous namespace)::f<float>(float*)" -> "f<float>".
std::string short_kernel_name(std::string_view name);

}  // namespace quern
