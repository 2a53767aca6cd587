#include "profile/time/classify_kernel.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace quern {

namespace {

struct Rule {
  std::string_view part;  // of the name, in lower case; the first rule that matches decides
  WorkKind kind;
};

constexpr std::array kKernelRules{
    Rule{"nccl", WorkKind::communication},
    Rule{"attention", WorkKind::attention},  // this project's: hopper_, mma_, tf32_ and scalar
    Rule{"flash", WorkKind::attention},      // of other projects
    Rule{"fmha", WorkKind::attention},
    Rule{"nvjet", WorkKind::gemm},  // cuBLASLt's own, from Hopper on
    Rule{"gemm", WorkKind::gemm},   // cuBLAS: sgemm, xmma_gemm, gemmk1; gemvx is below
    Rule{"gemv", WorkKind::gemm},
    Rule{"cutlass", WorkKind::gemm},
    Rule{"splitk", WorkKind::gemm},         // cuBLASLt: sums the parts of a split-K product
    Rule{"split_product", WorkKind::gemm},  // FP32 products of BF16 parts, and their operands
    Rule{"split_planes", WorkKind::gemm},
    Rule{"swiglu_product", WorkKind::gemm},
};

// An op rule matches the whole name: `linear` is not `swiglu_linear`.
constexpr std::array kOpRules{
    Rule{"matmul", WorkKind::gemm},
    Rule{"linear", WorkKind::gemm},
    Rule{"swiglu_linear", WorkKind::gemm},
    Rule{"gelu_linear", WorkKind::gemm},
    Rule{"lm_head_cross_entropy", WorkKind::gemm},
    Rule{"attention", WorkKind::attention},
    Rule{"flash_attention", WorkKind::attention},
    Rule{"rope_attention", WorkKind::attention},
    Rule{"qkv_attention", WorkKind::attention},
    Rule{"exchange", WorkKind::communication},  // of a RangedGroup
    Rule{"gather", WorkKind::communication},
    Rule{"share", WorkKind::communication},
    Rule{"broadcast", WorkKind::communication},
    Rule{"all_reduce", WorkKind::communication},
    Rule{"reduce_scatter", WorkKind::communication},
    Rule{"barrier", WorkKind::communication},
};

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

// The index of the parenthesis that opens the arguments: the match of a final ")".
size_t arguments_of(const std::string& name) {
  if (name.empty() || name.back() != ')') return name.size();
  int depth = 0;
  for (size_t i = name.size(); i-- > 0;) {
    depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
    if (depth == 0) return i;
  }
  return name.size();
}

// The kind of an event timed by CUDA events: an op, a phase or a step. The optimizer is a phase
// without ops.
WorkKind timed_kind(const Profile& profile, const DeviceEvent& event) {
  const std::string& name = profile.names[event.name];
  const bool op =
      event.range >= 0 && profile.ranges[static_cast<size_t>(event.range)].kind == RangeKind::op;
  return op || name == "optimizer" ? op_kind(name) : WorkKind::other;
}

// Copy engines may move what ranks exchange.
WorkKind copy_kind(const Profile& profile, const DeviceEvent& event) {
  if (event.range < 0) return WorkKind::copy;
  const RangeEvent& range = profile.ranges[static_cast<size_t>(event.range)];
  const WorkKind kind = op_kind(profile.names[range.name]);
  return kind == WorkKind::communication ? kind : WorkKind::copy;
}

}  // namespace

std::string short_kernel_name(std::string_view name) {
  std::string text(name);
  for (const std::string_view part :
       {"(anonymous namespace)::", "<unnamed>::", "quern::kernels::cuda::", "quern::kernels::",
        "quern::", "static ", "void "}) {
    remove_all(text, part);
  }
  text.erase(arguments_of(text));
  return text;
}

WorkKind kernel_kind(std::string_view name) {
  std::string small = short_kernel_name(name);
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto found = std::find_if(kKernelRules.begin(), kKernelRules.end(), [&](const Rule& rule) {
    return small.find(rule.part) != std::string::npos;
  });
  return found == kKernelRules.end() ? WorkKind::memory_bound : found->kind;
}

WorkKind op_kind(std::string_view name) {
  const auto found = std::find_if(kOpRules.begin(), kOpRules.end(),
                                  [&](const Rule& rule) { return name == rule.part; });
  return found == kOpRules.end() ? WorkKind::memory_bound : found->kind;
}

WorkKind work_kind(const Profile& profile, const DeviceEvent& event) {
  switch (event.kind) {
    case DeviceEventKind::kernel: return kernel_kind(profile.names[event.name]);
    case DeviceEventKind::copy:
    case DeviceEventKind::set: return copy_kind(profile, event);
    case DeviceEventKind::op: return timed_kind(profile, event);
  }
  fail("profile: unknown kind of device event");
}

}  // namespace quern
